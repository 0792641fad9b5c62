// Package checkpointtest makes up .pt2 checkpoints for tests: zips with the
// members of a package, whose compiled code is a header and nothing more.
package checkpointtest

import (
	"archive/zip"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"testing"
)

// Package is what a made-up checkpoint says of itself.
type Package struct {
	Machine  elf.Machine // of the shared object; x86-64 when 0
	SMs      []byte      // a cubin for each, 90 for sm_90
	NewABI   bool        // of the cubins: as newer CUDA writes it
	Metadata string      // none when empty
}

// Bytes is the checkpoint's zip.
func (p Package) Bytes(t testing.TB) []byte {
	t.Helper()
	if p.Machine == 0 {
		p.Machine = elf.EM_X86_64
	}
	files := [][2]string{
		{"m/data/aotinductor/model/c1.wrapper.cpp", "int main;"},
		{"m/data/aotinductor/model/c1.wrapper_metadata.json", `{"AOTI_DEVICE_KEY": "cpu"}`},
		{"m/data/aotinductor/model/c1.wrapper.so", string(ELF(p.Machine, 0, 0))},
		{"m/byteorder", "little"},
	}
	for i, sm := range p.SMs {
		abi, flags := byte(7), 0x00500500|uint32(sm)
		if p.NewABI {
			abi, flags = 8, 0x06000002|uint32(sm)<<8
		}
		const cuda = 190
		files = append(files, [2]string{"m/data/aotinductor/model/k" + string(rune('a'+i)) + ".cubin", string(ELF(cuda, abi, flags))})
	}
	if p.Metadata != "" {
		files = append(files, [2]string{"model_metadata.json", p.Metadata})
	}
	return Zip(t, files...)
}

// Write writes the checkpoint to a file.
func (p Package) Write(t testing.TB, path string) {
	t.Helper()
	if err := os.WriteFile(path, p.Bytes(t), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Zip is a zip of the files, given as name and contents, which are stored.
func Zip(t testing.TB, files ...[2]string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, f := range files {
		member, err := w.CreateHeader(&zip.FileHeader{Name: f[0], Method: zip.Store})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := member.Write([]byte(f[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// ELF is the header of a little-endian ELF file for 64 bits.
func ELF(machine elf.Machine, abiVersion byte, flags uint32) []byte {
	header := make([]byte, 64)
	copy(header, elf.ELFMAG)
	header[elf.EI_CLASS], header[elf.EI_DATA], header[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	header[elf.EI_ABIVERSION] = abiVersion
	binary.LittleEndian.PutUint16(header[18:], uint16(machine))
	binary.LittleEndian.PutUint32(header[48:], flags)
	return header
}
