package checkpoint

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"histogate/gateway/checkpoint/checkpointtest"
)

const metadata = `{"model": "Expression", "exported": {"by": ["somebody"]},
 "inputs": {"tile": {"shape": ["batch", 3, 224, 224], "dtype": "torch.float16", "description": "an H&E tile"},
            "bulkrna": {"shape": ["batch", 64], "dtype": "float32"},
            "a_first_by_name": {"shape": ["batch"], "dtype": "int64", "description": null}},
 "outputs": {"predictions": {"dtype": "float32", "shape": ["batch", "genes"]}}}`

// file writes bytes to a file m.pt2.
func file(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.pt2")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRead(t *testing.T) {
	p, err := Read(file(t, checkpointtest.Package{SMs: []byte{90, 80, 90}, Metadata: metadata}.Bytes(t)))
	if err != nil {
		t.Fatal(err)
	}
	batch := Dim{Name: "batch"}
	want := &Package{
		File: "m.pt2", CPUs: []CPU{X86}, SMs: []int{80, 90}, CUDA: true,
		Metadata: &Metadata{
			Inputs: Tensors{ // in the order of the text
				{Name: "tile", Shape: []Dim{batch, {Size: 3}, {Size: 224}, {Size: 224}}, DType: "float16"},
				{Name: "bulkrna", Shape: []Dim{batch, {Size: 64}}, DType: "float32"},
				{Name: "a_first_by_name", Shape: []Dim{batch}, DType: "int64"},
			},
			Outputs: Tensors{{Name: "predictions", Shape: []Dim{batch, {Name: "genes"}}, DType: "float32"}},
		},
	}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("read as\n%+v %+v, want\n%+v %+v", p, p.Metadata, want, want.Metadata)
	}
}

// The SM version of both ABIs, of an old GPU under the new one too, whose other
// flags look like SM versions.
func TestReadSMVersions(t *testing.T) {
	for _, test := range []struct {
		abi   byte
		flags uint32
		want  int
	}{
		{7, 0x00500550, 80}, {7, 0x005a055a, 90}, {8, 0x06005a04, 90}, {8, 0x06006402, 100}, {8, 0x06007802, 120},
	} {
		data := checkpointtest.Zip(t, [2]string{"a.so", string(checkpointtest.ELF(elf.EM_X86_64, 0, 0))},
			[2]string{"a.cubin", string(checkpointtest.ELF(190, test.abi, test.flags))})
		if p, err := Read(file(t, data)); err != nil || !reflect.DeepEqual(p.SMs, []int{test.want}) {
			t.Errorf("ABI %d, flags %#x: %+v, %v; want sm_%d", test.abi, test.flags, p, err, test.want)
		}
	}
}

// A package for a GPU need not hold cubins: AOTInductor's own description counts.
func TestReadDevice(t *testing.T) {
	object := [2]string{"a.so", string(checkpointtest.ELF(elf.EM_AARCH64, 0, 0))}
	p, err := Read(file(t, checkpointtest.Zip(t, object, [2]string{"a.wrapper_metadata.json", `{"AOTI_DEVICE_KEY": "cuda"}`})))
	if err != nil || !p.CUDA || p.SMs != nil || p.Metadata != nil || p.CPUs[0] != ARM64 {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestChecks(t *testing.T) {
	p := &Package{File: "m.pt2", CPUs: []CPU{ARM64}, SMs: []int{80}}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"same CPU":      {p.CheckCPU("arm64"), "<nil>"},
		"other CPU":     {p.CheckCPU("amd64"), "m.pt2 is built for aarch64 and this machine is x86-64; export it anew on x86-64"},
		"unknown CPU":   {p.CheckCPU("riscv64"), "<nil>"},
		"same GPU":      {p.CheckGPU([]int{80}, "TARGET_SM"), "<nil>"},
		"other GPU":     {p.CheckGPU([]int{90}, "TARGET_SM"), "m.pt2 is built for sm_80 and TARGET_SM says sm_90; export it anew on a GPU of sm_90"},
		"one GPU of 2":  {p.CheckGPU([]int{80, 86}, "nvidia-smi"), "m.pt2 is built for sm_80 and nvidia-smi says sm_80 and sm_86; leave Triton the GPUs of sm_80 alone (CUDA_VISIBLE_DEVICES) and set TARGET_SM=80"},
		"second of 2":   {p.CheckGPU([]int{75, 80}, "nvidia-smi"), "m.pt2 is built for sm_80 and nvidia-smi says sm_75 and sm_80; leave Triton the GPUs of sm_80 alone (CUDA_VISIBLE_DEVICES) and set TARGET_SM=80"},
		"neither of 2":  {p.CheckGPU([]int{75, 90}, "nvidia-smi"), "m.pt2 is built for sm_80 and nvidia-smi says sm_75 and sm_90; export it anew on one of these, leave Triton the GPUs of that kind alone (CUDA_VISIBLE_DEVICES) and set TARGET_SM to it"},
		"GPU not known": {p.CheckGPU(nil, ""), "<nil>"},
		"no GPU code":   {(&Package{}).CheckGPU([]int{90}, "TARGET_SM"), "<nil>"},
	} {
		if got := fmt.Sprint(test.err); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	object := [2]string{"a.so", string(checkpointtest.ELF(elf.EM_X86_64, 0, 0))}
	described := func(text string) [][2]string { return [][2]string{object, {"model_metadata.json", text}} }
	tensors := func(inputs string) [][2]string {
		return described(`{"inputs": ` + inputs + `, "outputs": {"y": {"shape": ["b"], "dtype": "float32"}}}`)
	}
	big := checkpointtest.ELF(elf.EM_PPC64, 0, 0)
	big[elf.EI_DATA] = byte(elf.ELFDATA2MSB)
	for name, test := range map[string]struct {
		files [][2]string
		want  string
	}{
		"no code":              {[][2]string{{"a.txt", "x"}}, "holds no compiled code (.so)"},
		"code that is none":    {[][2]string{{"a.so", strings.Repeat("x", 64)}}, `"a.so": is not an ELF file`},
		"short code":           {[][2]string{{"a.so", "\x7fELF"}}, `"a.so": is damaged or has fewer than 64 bytes`},
		"big-endian code":      {[][2]string{{"a.so", string(big)}}, `"a.so": is an ELF file, but not a little-endian one`},
		"cubin for a CPU":      {[][2]string{object, {"a.cubin", object[1]}}, `"a.cubin": is code for EM_X86_64, not for a GPU`},
		"cubin of no SM":       {[][2]string{object, {"a.cubin", string(checkpointtest.ELF(machineCUDA, 7, 0))}}, `"a.cubin": its SM version cannot be told`},
		"description a list":   {described(`[1]`), `"model_metadata.json": must be an object and not of type array`},
		"tensor a number":      {tensors(`{"x": 7}`), `tensor "x": must be an object and not of type number`},
		"device not JSON":      {[][2]string{object, {"a_metadata.json", "x"}}, `"a_metadata.json": is not JSON`},
		"two descriptions":     {append(tensors(`{"x": {"shape": ["b"], "dtype": "float32"}}`), [2]string{"m/model_metadata.json", "{}"}), "holds two descriptions"},
		"description too long": {described(strings.Repeat(" ", maxMetadata+1)), `"model_metadata.json": is one description too many: they have 1048577 bytes together; at most 1048576 are taken`},
		"long descriptions": {[][2]string{object, {"a_metadata.json", "{}" + strings.Repeat(" ", maxMetadata/2)}, {"b_metadata.json", "{}" + strings.Repeat(" ", maxMetadata/2)}},
			`"b_metadata.json": is one description too many`},
		"not JSON":            {described("x"), `"model_metadata.json": invalid character 'x'`},
		"trailing":            {described("{} {}"), "invalid character"},
		"no inputs":           {described(`{"model": "M"}`), "inputs and outputs must each name at least one tensor"},
		"inputs a list":       {tensors(`[1]`), "must be objects, by tensor name"},
		"tensor twice":        {tensors(`{"x": {"shape": ["b"], "dtype": "f"}, "x": {"shape": ["b"], "dtype": "f"}}`), `tensor "x" is there twice`},
		"no shape":            {tensors(`{"x": {"dtype": "float32"}}`), `tensor "x": its shape must have from 1 to 16 sizes`},
		"no dtype":            {tensors(`{"x": {"shape": ["b"]}}`), `tensor "x" has no dtype`},
		"dtype a number":      {tensors(`{"x": {"shape": ["b"], "dtype": 7}}`), `tensor "x": dtype must be a text`},
		"size of zero":        {tensors(`{"x": {"shape": [0], "dtype": "float32"}}`), `the size "0" must be a whole number above zero, or a name`},
		"negative size":       {tensors(`{"x": {"shape": [-1], "dtype": "float32"}}`), `the size "-1" must be`},
		"fraction":            {tensors(`{"x": {"shape": [1.5], "dtype": "float32"}}`), `the size "1.5" must be`},
		"null":                {tensors(`{"x": {"shape": [null], "dtype": "float32"}}`), `the size "null" must be`},
		"empty name":          {tensors(`{"x": {"shape": [""], "dtype": "float32"}}`), `the size "\"\"" must be`},
		"long name":           {tensors(`{"` + strings.Repeat("x", 101) + `": {"shape": ["b"], "dtype": "float32"}}`), `xxx": its name has 101 bytes; at most 100 are taken`},
		"name that clears":    {tensors(`{"\u001b[2Jx": {"shape": ["b"], "dtype": "float32"}}`), `tensor "\x1b[2Jx": its name holds what cannot be printed`},
		"name of two lines":   {tensors(`{"x\ny": {"shape": ["b"], "dtype": "float32"}}`), `tensor "x\ny": its name holds what cannot be printed`},
		"long dtype":          {tensors(`{"x": {"shape": ["b"], "dtype": "` + strings.Repeat("f", 1000) + `"}}`), `tensor "x": its dtype has 1000 bytes; at most 100 are taken`},
		"dtype that clears":   {tensors(`{"x": {"shape": ["b"], "dtype": "torch.\u001b[2J\u0000"}}`), `tensor "x": its dtype holds what cannot be printed`},
		"long size":           {tensors(`{"x": {"shape": ["` + strings.Repeat("f", 1000) + `"], "dtype": "float32"}}`), `tensor "x": the name of a size has 1000 bytes; at most 100 are taken`},
		"size that clears":    {tensors(`{"x": {"shape": ["\u009b2J"], "dtype": "float32"}}`), `tensor "x": the name of a size holds what cannot be printed`},
		"size of many digits": {tensors(`{"x": {"shape": [` + strings.Repeat("9", 1000) + `], "dtype": "float32"}}`), `99999" must be a whole number`},
		"many tensors": {tensors("{" + strings.TrimSuffix(func() (all string) {
			for i := range maxTensors + 1 {
				all += fmt.Sprintf(`"x%d": {"shape": ["b"], "dtype": "float32"},`, i)
			}
			return all
		}(), ",") + "}"), "more than 64 tensors"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(file(t, checkpointtest.Zip(t, test.files...)))
			if err == nil || !strings.HasPrefix(err.Error(), "m.pt2: ") || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v does not name the file and say %q", err, test.want)
			}
			if err != nil && len(err.Error()) > 500 {
				t.Errorf("it has %d bytes", len(err.Error()))
			}
		})
	}
}

// What is not a file at all is an error without its path.
func TestReadRefusesFiles(t *testing.T) {
	folder := t.TempDir()
	for name, want := range map[string]string{
		filepath.Join(folder, "absent.pt2"): "absent.pt2: no such file or directory",
		folder:                              filepath.Base(folder) + ": is not a regular file",
	} {
		if _, err := Read(name); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// Whatever a description holds, what is said of it is a short line that can be logged
// and answered, and so is what is taken over from it.
func FuzzMetadata(f *testing.F) {
	f.Add([]byte(metadata))
	f.Add([]byte(`{"inputs": {"x\u001b": {"shape": ["b", 1e400], "dtype": "torch.\n"}}, "outputs": {}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parseMetadata(text)
		if err != nil {
			if len(err.Error()) > 500 || strings.ContainsFunc(err.Error(), unicode.IsControl) {
				t.Errorf("an error that is no line: %q", err)
			}
			return
		}
		for _, tensor := range slices.Concat(m.Inputs, m.Outputs) {
			line := tensor.Name + string(tensor.DType) + fmt.Sprint(tensor.Shape)
			if len(line) > maxText*(maxRank+3) || strings.ContainsFunc(line, unicode.IsControl) {
				t.Errorf("taken over: %q", line)
			}
		}
	})
}
