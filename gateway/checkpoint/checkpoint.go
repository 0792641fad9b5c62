// Package checkpoint reads what a .pt2 checkpoint says of itself, without
// unpacking or running it.
//
// A .pt2 is a zip written by the packaging of torch's AOTInductor. It holds the
// model compiled to native code: shared objects for one kind of processor and,
// for a GPU, cubins for one generation of it. It may hold model_metadata.json,
// which names the tensors. Loading one that was compiled for another machine
// fails late and obscurely, or kills the process, so that is found out here.
//
// The file is not trusted to be well formed: every size in it is bounded, and no
// more of it is read than its directory, the heads of its compiled members and
// its metadata. It is trusted in the end, though: whoever may write a checkpoint
// runs code in Triton.
package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// MetadataName is the member that describes the tensors. It may lie in any
// folder of the archive, once.
const MetadataName = "model_metadata.json"

// descriptionSuffix is how the names of all members end that describe something.
const descriptionSuffix = "_metadata.json"

// Package is what a checkpoint says of itself.
type Package struct {
	File     string    // its file's name, without the folder
	Metadata *Metadata // nil where it has none
	// CPUs are the kinds of processor of its shared objects, SMs the SM
	// versions of its cubins (90 for sm_90), each once and in order.
	CPUs []CPU
	SMs  []int
	// CUDA tells that it runs on a GPU. A package can do so without cubins, when
	// all its work is done by libraries.
	CUDA bool
}

// Read reads the checkpoint at path. Its error names the file, what is wrong
// with it and, where it is one, the member.
func Read(path string) (*Package, error) {
	name := filepath.Base(path)
	// Not blocking, for else a FIFO would wait here for somebody to write to it.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, plain(err))
	}
	defer file.Close() //nolint:errcheck // it is only read
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, plain(err))
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: is not a regular file", name)
	}
	a, err := openArchive(file, info.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p, err := inspect(a)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p.File = name
	return p, nil
}

// inspect looks at the members that say something of the package.
func inspect(a *archive) (*Package, error) {
	p := new(Package)
	described, together := "", int64(0) // bytes of all descriptions
	for i := range a.members {
		m := &a.members[i]
		var err error
		base := path.Base(m.name)
		if strings.HasSuffix(base, descriptionSuffix) {
			if together += m.size; together > maxMetadata {
				return nil, fmt.Errorf("%s: is one description too many: they have %d bytes together; at most %d are taken", quote(m.name), together, maxMetadata)
			}
		}
		switch {
		case base == MetadataName:
			if described != "" {
				return nil, fmt.Errorf("holds two descriptions, %s and %s", quote(described), quote(m.name))
			}
			described = m.name
			p.Metadata, err = readMetadata(a, m)
		case strings.HasSuffix(base, descriptionSuffix):
			err = p.addDevice(a, m)
		case strings.HasSuffix(base, ".so"):
			err = p.addSharedObject(a, m)
		case strings.HasSuffix(base, ".cubin"):
			err = p.addCubin(a, m)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", quote(m.name), err)
		}
	}
	if p.CPUs == nil {
		return nil, errors.New("holds no compiled code (.so): it is not a package of AOTInductor")
	}
	slices.Sort(p.CPUs)
	slices.Sort(p.SMs)
	return p, nil
}

// CheckCPU refuses a package that was compiled for another kind of processor
// than goarch, a value of [runtime.GOARCH].
func (p *Package) CheckCPU(goarch string) error {
	here, known := cpuOf(goarch)
	if !known {
		return nil
	}
	for _, built := range p.CPUs {
		if built != here {
			return fmt.Errorf("%s is built for %s and this machine is %s; export it anew on %s", p.File, built, here, here)
		}
	}
	return nil
}

// CheckGPU refuses a package whose GPU code was compiled for another SM version
// than one of the given, which come from source: Triton would run it on each of them.
// A cubin of a lower minor version could still run; it is refused as well, for an
// export that fits is as easily made and the kernels in it are tuned.
func (p *Package) CheckGPU(targets []int, source string) error {
	for _, built := range p.SMs {
		if !slices.ContainsFunc(targets, func(here int) bool { return here != built }) {
			continue
		}
		names := make([]string, len(targets))
		for i, here := range targets {
			names[i] = fmt.Sprintf("sm_%d", here)
		}
		said := fmt.Sprintf("%s is built for sm_%d and %s says %s", p.File, built, source, strings.Join(names, " and "))
		switch {
		case len(targets) == 1:
			return fmt.Errorf("%s; export it anew on a GPU of %s", said, names[0])
		case slices.Contains(targets, built):
			return fmt.Errorf("%s; leave Triton the GPUs of sm_%d alone (CUDA_VISIBLE_DEVICES) and set TARGET_SM=%d", said, built, built)
		default:
			return fmt.Errorf("%s; export it anew on one of these, leave Triton the GPUs of that kind alone (CUDA_VISIBLE_DEVICES) and set TARGET_SM to it", said)
		}
	}
	return nil
}

// plain is a file system's error without the path, which is not for callers.
func plain(err error) error {
	if at, ok := errors.AsType[*os.PathError](err); ok {
		return at.Err
	}
	return err
}

// quote shows a name out of a file that may hold anything, cut to what a line
// of a log can take.
func quote(name string) string {
	const most = 40
	if runes := []rune(name); len(runes) > most {
		name = "..." + string(runes[len(runes)-most+3:])
	}
	return fmt.Sprintf("%q", name)
}
