//go:build pt2

package pt2

import (
	"archive/zip"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"runtime"
	"strings"
	"testing"
)

// This machine's kind of processor and another, as messages and as ELF files say it.
var thisCPU, otherCPU, otherMachine = func() (string, string, elf.Machine) {
	if runtime.GOARCH == "arm64" {
		return "aarch64", "x86-64", elf.EM_X86_64
	}
	return "x86-64", "aarch64", elf.EM_AARCH64
}()

// stamped is a package whose code says that it is for another kind of processor.
func stamped(t *testing.T, data []byte) []byte {
	t.Helper()
	return rewritten(t, data, func(name string, member []byte) {
		if strings.HasSuffix(name, ".so") {
			binary.LittleEndian.PutUint16(member[18:], uint16(otherMachine)) // e_machine
		}
	})
}

// resummed is a package after a change of its bytes, with sums that agree.
func resummed(t *testing.T, data []byte) []byte {
	t.Helper()
	return rewritten(t, data, func(string, []byte) {})
}

// rewritten writes a zip anew with members that change may alter in place.
func rewritten(t *testing.T, data []byte, change func(name string, member []byte)) []byte {
	t.Helper()
	from, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	to := zip.NewWriter(&out)
	for _, f := range from.File {
		raw, err := f.OpenRaw()
		if err != nil {
			t.Fatal(err)
		}
		member, err := io.ReadAll(raw) // stored, and read without its sum
		if err != nil {
			t.Fatal(err)
		}
		change(f.Name, member)
		w, err := to.CreateHeader(&zip.FileHeader{Name: f.Name, Method: zip.Store})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(member); err != nil {
			t.Fatal(err)
		}
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
