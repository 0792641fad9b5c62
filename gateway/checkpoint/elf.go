package checkpoint

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// CPU is a kind of processor, under the name that its users know.
type CPU string

// The kinds of processor that models are served on.
const (
	X86   CPU = "x86-64"
	ARM64 CPU = "aarch64"
)

func cpuOf(goarch string) (cpu CPU, known bool) {
	switch goarch {
	case "amd64":
		return X86, true
	case "arm64":
		return ARM64, true
	default:
		return "", false
	}
}

// Where the header of an ELF file for 64 bits says what it is for (System V ABI,
// ELF header). A cubin is an ELF file too, of the machine EM_CUDA.
const (
	elfHeader     = 64
	elfMachine    = 18
	elfFlags      = 48
	machineCUDA   = elf.Machine(190)
	cubinABILast8 = 7 // the last version of a cubin's ABI with the SM version in the low byte
)

// readELF reads the header of a member that must be a little-endian ELF file
// for 64 bits.
func readELF(a *archive, m *member) ([]byte, error) {
	header, err := a.head(m, elfHeader)
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(header, []byte(elf.ELFMAG)) {
		return nil, errors.New("is not an ELF file")
	}
	if elf.Class(header[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(header[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return nil, errors.New("is an ELF file, but not a little-endian one for 64 bits")
	}
	return header, nil
}

func (p *Package) addSharedObject(a *archive, m *member) error {
	header, err := readELF(a, m)
	if err != nil {
		return err
	}
	var cpu CPU
	switch machine := elf.Machine(u16(header, elfMachine)); machine {
	case elf.EM_X86_64:
		cpu = X86
	case elf.EM_AARCH64:
		cpu = ARM64
	default:
		cpu = CPU(machine.String())
	}
	if !slices.Contains(p.CPUs, cpu) {
		p.CPUs = append(p.CPUs, cpu)
	}
	return nil
}

// addCubin notes the SM version of a cubin. It stands in the low byte of e_flags
// up to version 7 of the ABI, and in the second byte from version 8 on, which
// newer compilers write for old GPUs too; the low byte holds other flags then.
// (EF_CUDA_SM, EF_CUDA_SM_MASK and ELFABIVERSION_CUDA_V2 in LLVM's ELF.h.)
func (p *Package) addCubin(a *archive, m *member) error {
	header, err := readELF(a, m)
	if err != nil {
		return err
	}
	if machine := elf.Machine(u16(header, elfMachine)); machine != machineCUDA {
		return fmt.Errorf("is code for %s, not for a GPU", machine)
	}
	version := u32(header, elfFlags)
	if header[elf.EI_ABIVERSION] > cubinABILast8 {
		version >>= 8
	}
	p.CUDA = true
	sm := int(version & 0xff)
	if sm == 0 {
		return errors.New("its SM version cannot be told")
	}
	if !slices.Contains(p.SMs, sm) {
		p.SMs = append(p.SMs, sm)
	}
	return nil
}

// addDevice reads which device AOTInductor compiled for, from the description
// that it puts beside the code.
func (p *Package) addDevice(a *archive, m *member) error {
	text, err := a.readAll(m, maxMetadata)
	if err != nil {
		return err
	}
	var description struct {
		Device string `json:"AOTI_DEVICE_KEY"`
	}
	if err := json.Unmarshal(text, &description); err != nil {
		return errors.New("is not JSON, or its AOTI_DEVICE_KEY is not a text")
	}
	p.CUDA = p.CUDA || description.Device == "cuda"
	return nil
}
