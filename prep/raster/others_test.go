package raster

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	othersDir    = "../../tests/testdata/images"
	othersScript = "../../tests/reference/other_images.py"
	oraclePython = "../../build/tools/bin/python"
)

// refusedOnPurpose lists the classes of files that Pillow opens and this package
// does not, each with what its refusal has to say.
var refusedOnPurpose = map[string]string{
	// Pillow clips these to 0 to 255, so most pictures would turn white unseen.
	"tiff-I;16":      "16-bit grey",
	"tiff-gray16_be": "16-bit grey",
	"tiff-I":         "32-bit",
	"tiff-u32":       "32-bit",
	"tiff-F":         "floating-point",
	// Kinds that no tile is sent in, and whose decoders differ from Pillow's.
	"tiff-1-fax": "fax compression",
	"tiff-LAB":   "CIELAB",
	// Formats that are not taken: the message lists those that are.
	"other-avif":     "a format that is taken (",
	"other-blp":      "a format that is taken (",
	"other-dds":      "a format that is taken (",
	"other-fits":     "a format that is taken (",
	"other-ico":      "a format that is taken (",
	"other-im":       "a format that is taken (",
	"other-jpeg2000": "a format that is taken (",
	"other-msp":      "a format that is taken (",
	"other-ppm":      "a format that is taken (",
	"other-qoi":      "a format that is taken (",
	"other-spider":   "a format that is taken (",
	"other-tga":      "a format that is taken (",
	"other-xbm":      "a format that is taken (",
}

// stored reads a file of the manifest that is in the repository, packed or not.
func stored(t *testing.T, name string) ([]byte, bool) {
	data, err := os.ReadFile(filepath.Join(othersDir, name))
	if err == nil {
		return data, true
	}
	packed, err := os.Open(filepath.Join(othersDir, name+".gz"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, false
	}
	if err == nil {
		defer packed.Close()
		var r *gzip.Reader
		if r, err = gzip.NewReader(packed); err == nil {
			data, err = io.ReadAll(r)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return data, true
}

func runOracle(t testing.TB, arguments ...string) {
	t.Helper()
	if out, err := exec.Command(oraclePython, append([]string{othersScript}, arguments...)...).CombinedOutput(); err != nil {
		t.Fatalf("the Python environment of the tests does not work (deploy/setup makes it): %v\n%s", err, out)
	}
}

// madeFiles is a folder of the files of the manifest that are not stored.
func madeFiles(t *testing.T) string {
	made := t.TempDir()
	source, found := stored(t, "bmp_rgb.bmp")
	if !found {
		t.Fatal("bmp_rgb.bmp is missing")
	}
	if err := os.WriteFile(filepath.Join(made, "source"), source, 0o600); err != nil {
		t.Fatal(err)
	}
	runOracle(t, "make", filepath.Join(made, "source"), made)
	return made
}

func TestManifestOthers(t *testing.T) {
	made := madeFiles(t)
	manifest, err := os.Open(filepath.Join(othersDir, "manifest-others.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	defer manifest.Close()
	classes := make(map[string]bool)
	for lines := bufio.NewScanner(manifest); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		field := strings.Split(lines.Text(), "\t")
		name, class, sum, verdict := field[0], field[1], field[2], field[3]
		classes[class] = true
		data, found := stored(t, name)
		if !found {
			if data, err = os.ReadFile(filepath.Join(made, name)); err != nil {
				t.Error(err)
				continue
			}
		}
		if got := sha256.Sum256(data); hex.EncodeToString(got[:]) != sum {
			t.Errorf("%s is another file than the manifest's", name)
			continue
		}
		width, height := 224, 224
		accepted := strings.HasPrefix(verdict, "ok ")
		if accepted {
			if _, err := fmt.Sscanf(verdict, "ok %dx%d", &width, &height); err != nil {
				t.Fatal(err)
			}
		}
		rgb := make([]byte, 3*width*height)
		err := Decode(data, width, height, Formats(), Target{Dst: rgb})
		reason, refused := refusedOnPurpose[class]
		switch {
		case err == nil && refused, err == nil && !accepted:
			t.Errorf("%s (%s) is taken", name, class)
		case refused && !strings.Contains(err.Error(), reason):
			t.Errorf("%s (%s): %q does not say %q", name, class, err, reason)
		case err != nil && accepted && !refused:
			t.Errorf("%s (%s) is refused: %v", name, class, err)
		case err == nil && fmt.Sprintf("ok %dx%d %x", width, height, sha256.Sum256(rgb)) != verdict:
			t.Errorf("%s (%s) has other pixels than Pillow's", name, class)
		}
		if err != nil && errors.As(err, new(*Error)) == false {
			t.Errorf("%s: %v is not an *Error", name, err)
		}
	}
	for class := range refusedOnPurpose {
		if !classes[class] {
			t.Errorf("no file of the class %s", class)
		}
	}
}

// smallSeeds are the files that are mutated, with what Pillow makes of each.
func smallSeeds(t testing.TB) map[string][]byte {
	dir := t.TempDir()
	runOracle(t, "seeds", dir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	seeds := make(map[string][]byte)
	for _, entry := range entries {
		if seeds[entry.Name()], err = os.ReadFile(filepath.Join(dir, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return seeds
}

// pillow is a running oracle: one answer for each file, in order.
type pillow struct {
	in  io.WriteCloser
	out *bufio.Reader
}

func startPillow(t testing.TB) *pillow {
	command := exec.Command(oraclePython, othersScript, "verdicts")
	in, inErr := command.StdinPipe()
	out, outErr := command.StdoutPipe()
	if err := errors.Join(inErr, outErr, command.Start()); err != nil {
		t.Fatalf("the Python environment of the tests does not work (deploy/setup makes it): %v", err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := command.Wait(); err != nil {
			t.Errorf("the oracle: %v", err)
		}
	})
	return &pillow{in, bufio.NewReaderSize(out, 1<<20)}
}

// decode gives Pillow's size and pixels, or a width of 0 for a file it refuses.
func (p *pillow) decode(t testing.TB, data []byte) (width, height int, rgb []byte) {
	t.Helper()
	var size [8]byte
	_, err := p.in.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(data))), data...))
	if err == nil {
		_, err = io.ReadFull(p.out, size[:])
	}
	width, height = int(binary.LittleEndian.Uint32(size[:])), int(binary.LittleEndian.Uint32(size[4:]))
	rgb = make([]byte, 3*width*height)
	if err == nil {
		_, err = io.ReadFull(p.out, rgb)
	}
	if err != nil {
		t.Fatalf("the oracle has died: %v", err)
	}
	return width, height, rgb
}

// refusedSeeds are the small files that are refused on purpose, by their names'
// beginnings.
var refusedSeeds = []string{"refused-", "xmp", "rgb555", "rle8"}

func TestSmallFilesAgainstPillow(t *testing.T) {
	oracle := startPillow(t)
	for name, data := range smallSeeds(t) {
		width, height, want := oracle.decode(t, data)
		if width == 0 {
			t.Errorf("%s: Pillow refuses the seed", name)
			continue
		}
		got := make([]byte, len(want))
		err := Decode(data, width, height, Formats(), Target{Dst: got})
		refused := false
		for _, prefix := range refusedSeeds {
			refused = refused || strings.HasPrefix(name, prefix)
		}
		var e *Error
		switch {
		case refused && (!errors.As(err, &e) || e.Kind != Unsupported):
			t.Errorf("%s is not refused as unsupported: %v", name, err)
		case !refused && err != nil:
			t.Errorf("%s is refused: %v", name, err)
		case !refused && !bytes.Equal(got, want):
			t.Errorf("%s has other pixels than Pillow's", name)
		}
	}
}

// mutate changes a copy of a file in one to four places.
func mutate(r *rand.Rand, seed []byte) []byte {
	data := bytes.Clone(seed)
	for range 1 + r.IntN(4) {
		if len(data) < 2 {
			break
		}
		at := r.IntN(len(data))
		switch r.IntN(4) {
		case 0: // near the start, where headers are
			at = r.IntN(min(len(data), 64))
		case 1: // near the end, where Pillow's directories are
			at = len(data) - 1 - r.IntN(min(len(data), 250))
		}
		switch r.IntN(16) {
		case 0:
			data = data[:at]
		case 1:
			data = append(data[:at:at], data[at+1:]...)
		case 2:
			data = append(data[:at:at], append([]byte{byte(r.Uint32())}, data[at:]...)...)
		case 3, 4, 5:
			data[at] ^= 1 << r.IntN(8)
		case 6, 7, 8:
			data[at] = []byte{0, 1, 2, 3, 4, 5, 7, 8, 16, 32, 127, 128, 254, 255}[r.IntN(14)]
		case 9, 10:
			data[at]++
		case 11:
			data[at]--
		default:
			data[at] = byte(r.Uint32())
		}
	}
	return data
}

// TestMutantsAgainstPillow: never other pixels than Pillow's, never a picture
// where Pillow refuses. OTHERS_MUTANTS sets the number of mutants.
func TestMutantsAgainstPillow(t *testing.T) {
	count, seed := 4000, uint64(1)
	if v := os.Getenv("OTHERS_MUTANTS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal(err)
		}
		count, seed = n, uint64(time.Now().UnixNano())
	}
	t.Logf("%d mutants, seed %d", count, seed)
	r := rand.New(rand.NewPCG(seed, 0))
	oracle := startPillow(t)
	type file struct {
		name          string
		data, rgb     []byte
		width, height int
	}
	byFormat := make(map[Format][]file)
	seeds := smallSeeds(t)
	for _, name := range slices.Sorted(maps.Keys(seeds)) {
		data := seeds[name]
		f := file{name: name, data: data}
		f.width, f.height, f.rgb = oracle.decode(t, data)
		for _, d := range decoders {
			if d.matches(data) {
				byFormat[d.format] = append(byFormat[d.format], f)
			}
		}
	}
	for _, format := range []Format{TIFF, GIF, BMP} {
		files := byFormat[format]
		both, changed, pillowOnly, wrong := 0, 0, 0, 0
		for n := range count / 3 {
			f := files[r.IntN(len(files))]
			data := mutate(r, f.data)
			width, height, want := oracle.decode(t, data)
			if width == 0 {
				width, height, want = f.width, f.height, nil
			}
			got := make([]byte, 3*width*height)
			err := Decode(data, width, height, []Format{format}, Target{Dst: got})
			switch {
			case err == nil && !bytes.Equal(got, want):
				wrong++
				kept := filepath.Join(os.TempDir(), fmt.Sprintf("disagreement-%d-%d-%s", seed, n, f.name))
				t.Errorf("a mutant of %s is taken; Pillow refuses it: %t; it is kept in %s (%v)",
					f.name, want == nil, kept, os.WriteFile(kept, data, 0o600))
			case err == nil:
				both++
				if !bytes.Equal(want, f.rgb) {
					changed++
				}
			case want != nil:
				pillowOnly++
			}
		}
		share := func(n int) float64 { return 100 * float64(n) / float64(count/3) }
		t.Logf("%s: %d mutants; taken by both %.1f %%, of them with other pixels than the seed's %.1f %%; "+
			"refused here alone %.1f %%; disagreements %d", format, count/3, share(both), share(changed), share(pillowOnly), wrong)
		if both == 0 || changed == 0 {
			t.Errorf("no mutant of a %s is taken by both: nothing was tested", format)
		}
	}
}

func TestFormatNotAllowed(t *testing.T) {
	data, _ := stored(t, "gif_subframe.gif")
	err := Decode(data, 1, 1, []Format{PNG, TIFF}, Target{Dst: make([]byte, 3)})
	var e *Error
	if !errors.As(err, &e) || e.Kind != UnknownFormat || e.Format != GIF {
		t.Fatalf("%#v", err)
	}
	if want := "a GIF is not taken here; what is taken: PNG, TIFF"; e.Detail != want {
		t.Errorf("%q, want %q", e.Detail, want)
	}
}

// TestSizeBeforeMemory: a header that claims a huge picture, or a small file that
// claims much data, costs neither time nor memory.
func TestSizeBeforeMemory(t *testing.T) {
	bmp, _ := stored(t, "bmp_rgb.bmp")
	bmp = bytes.Clone(bmp)
	binary.LittleEndian.PutUint32(bmp[18:], 60000)
	binary.LittleEndian.PutUint32(bmp[22:], 60000)
	gif, _ := stored(t, "gif_subframe.gif")
	gif = bytes.Clone(gif)
	binary.LittleEndian.PutUint16(gif[6:], 60000)
	binary.LittleEndian.PutUint16(gif[8:], 60000)
	tiff := (&tiffImage{order: binary.LittleEndian, width: 60000, height: 60000, compression: tiffDeflate,
		chunkHeight: 60000, chunks: [][]byte{make([]byte, 100)}}).encode()
	// Its 224 strips are the same 4 MB of data.
	shared := (&tiffImage{order: binary.LittleEndian, width: 224, height: 224, compression: tiffLZW,
		chunkHeight: 1, chunks: append([][]byte{make([]byte, 4<<20)}, make([][]byte, 223)...)}).encode()
	for i := range 224 {
		copy(shared[134+4*i:], shared[134:138])
		copy(shared[134+4*(224+i):], shared[134+4*224:134+4*225])
	}
	for _, c := range []struct {
		name string
		data []byte
		kind Kind
	}{
		{"BMP 60000x60000", bmp, WrongSize}, {"GIF 60000x60000", gif, WrongSize},
		{"TIFF 60000x60000", tiff, WrongSize}, {"TIFF of shared strips", shared, Damaged},
	} {
		var before, after runtime.MemStats
		dst := make([]byte, 3*224*224)
		runtime.ReadMemStats(&before)
		start := time.Now()
		err := Decode(c.data, 224, 224, Formats(), Target{Dst: dst})
		took := time.Since(start)
		runtime.ReadMemStats(&after)
		var e *Error
		if !errors.As(err, &e) || e.Kind != c.kind {
			t.Errorf("%s: %v", c.name, err)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 || took > 50*time.Millisecond {
			t.Errorf("%s: %d bytes and %v", c.name, used, took)
		}
	}
}

// TestTIFFInParallel: libvips is one for the process; pictures must not mix.
func TestTIFFInParallel(t *testing.T) {
	seeds := smallSeeds(t)
	files := [][]byte{seeds["RGB-tiff_lzw.tif"], seeds["P-packbits.tif"], seeds["L-tiff_adobe_deflate.tif"], seeds["turned3.tif"]}
	var want [4][]byte
	for i, data := range files {
		want[i] = make([]byte, 3*21*18)
		if err := Decode(data, 21, 18, Formats(), Target{Dst: want[i]}); err != nil {
			t.Fatal(err)
		}
	}
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			got := make([]byte, 3*21*18)
			for n := range 100 {
				i := (w + n) % len(files)
				before := bytes.Clone(files[i])
				err := Decode(files[i], 21, 18, Formats(), Target{Dst: got})
				if err != nil || !bytes.Equal(got, want[i]) || !bytes.Equal(before, files[i]) {
					t.Errorf("file %d: %v, or other pixels than alone, or changed", i, err)
				}
			}
		})
	}
	workers.Wait()
}

// rss is the resident memory of this process in bytes.
func rss(t *testing.T) int {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(data))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// TestTIFFMemoryIsFlat: neither pictures nor failures stay in libvips.
func TestTIFFMemoryIsFlat(t *testing.T) {
	count := 500
	if v := os.Getenv("OTHERS_TIFF_DECODES"); v != "" {
		count, _ = strconv.Atoi(v)
	}
	good, err := os.ReadFile(filepath.Join(madeFiles(t), "tiff_rgb_tiff_lzw.tif"))
	if err != nil {
		t.Fatal(err)
	}
	bad := bytes.Clone(good)
	clear(bad[len(bad)/2:][:10_000])
	dst := make([]byte, 3*224*224)
	decode := func(n int) {
		for range n {
			if err := Decode(good, 224, 224, Formats(), Target{Dst: dst}); err != nil {
				t.Fatal(err)
			}
			if err := Decode(bad, 224, 224, Formats(), Target{Dst: dst}); err == nil {
				t.Fatal("damaged data are taken")
			}
		}
	}
	decode(100)
	before := rss(t)
	start := time.Now()
	decode(count)
	took := time.Since(start)
	grown := rss(t) - before
	t.Logf("%d decodes and as many refusals: %d KiB more; %v each", count, grown>>10, took/time.Duration(2*count))
	if grown > 16<<20 {
		t.Errorf("resident memory has grown by %d KiB", grown>>10)
	}
}

func fuzzOther(f *testing.F, format Format) {
	for _, data := range smallSeeds(f) {
		for _, d := range decoders {
			if d.format == format && d.matches(data) {
				f.Add(data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, size := range [][2]int{{21, 18}, {18, 21}} {
			err := Decode(data, size[0], size[1], []Format{format}, Target{Dst: make([]byte, 3*21*18)})
			if err != nil && !errors.As(err, new(*Error)) {
				t.Errorf("%T: %v", err, err)
			}
		}
	})
}

func FuzzTIFF(f *testing.F) { fuzzOther(f, TIFF) }
func FuzzGIF(f *testing.F)  { fuzzOther(f, GIF) }
func FuzzBMP(f *testing.F)  { fuzzOther(f, BMP) }

func BenchmarkOthers(b *testing.B) {
	seeds := smallSeeds(b)
	for _, name := range []string{"RGB-tiff_lzw.tif", "RGB-tiff_adobe_deflate.tif", "RGB.gif", "RGB.bmp"} {
		dst := make([]byte, 3*21*18)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := Decode(seeds[name], 21, 18, Formats(), Target{Dst: dst}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
