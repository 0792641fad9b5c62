package repository

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protowire"
)

// The field of an ONNX ModelProto that holds the graph (onnx.proto).
const onnxGraph protowire.Number = 7

// checkONNX tells of a file that is no ONNX model, or not the whole of one: an ONNX file is
// one protobuf message, which has a graph. Of each of its fields only the beginning is read,
// however large the weights are. What the graph is made of, onnxruntime knows.
func checkONNX(folder, name string) error {
	file, err := os.Open(filepath.Join(folder, name))
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // it is only read
	info, err := file.Stat()
	if err != nil {
		return err
	}
	graph := false
	for at := int64(0); at < info.Size(); {
		var head [20]byte // a tag and a length
		n, err := file.ReadAt(head[:], at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		number, kind, tag := protowire.ConsumeTag(head[:n])
		if tag < 0 {
			return errNoONNX
		}
		at += int64(tag)
		switch kind {
		case protowire.BytesType:
			length, prefix := protowire.ConsumeVarint(head[tag:n])
			if prefix < 0 {
				return errNoONNX
			}
			at += int64(prefix)
			if length > uint64(info.Size()-at) {
				if number == onnxGraph {
					return errors.New("it ends before its graph does; copy the whole file")
				}
				return errNoONNX
			}
			at += int64(length)
			graph = graph || number == onnxGraph
		default:
			length := protowire.ConsumeFieldValue(number, kind, head[tag:n])
			if length < 0 {
				return errNoONNX
			}
			at += int64(length)
		}
	}
	if !graph {
		return errNoONNX
	}
	return nil
}

var errNoONNX = errors.New("it is no ONNX model, or not the whole of one; put one there")
