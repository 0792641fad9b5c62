package repository

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// An ONNX file is taken when it is whole, whatever its graph holds, and nothing else is.
func TestCheckONNX(t *testing.T) {
	version := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 10)
	producer := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), []byte("pytorch"))
	graph := protowire.AppendBytes(protowire.AppendTag(nil, onnxGraph, protowire.BytesType), make([]byte, 1000))
	whole := string(version) + string(producer) + string(graph) + string(producer)
	for name, test := range map[string]struct{ content, want string }{
		"whole":                    {whole, ""},
		"cut off in its graph":     {whole[:500], "ends before its graph does"},
		"cut off before its graph": {string(version) + string(producer), "no ONNX model"},
		"cut off in a tag":         {whole + "\xff", "no ONNX model"},
		"cut off in a length":      {whole + "\x3a\xff", "no ONNX model"},
		"cut off in a number":      {whole + "\x08\xff", "no ONNX model"},
		"junk":                     {"junk\n", "no ONNX model"},
		"a page":                   {"<!DOCTYPE html>", "no ONNX model"},
		"a pointer to the file":    {"version https://git-lfs.github.com/spec/v1\n", "no ONNX model"},
		"a length beyond all":      {"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "ends before its graph does"},
		"zeros":                    {strings.Repeat("\x00", 100), "no ONNX model"},
	} {
		folder := t.TempDir()
		if err := os.WriteFile(filepath.Join(folder, onnxName), []byte(test.content), 0o600); err != nil {
			t.Fatal(err)
		}
		err := checkONNX(folder, onnxName)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	stand := "../../model_repository/h1/1"
	if err := checkONNX(stand, onnxName); err != nil {
		t.Errorf("a stand-in, which onnxruntime runs: %v", err)
	}
}
