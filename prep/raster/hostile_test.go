package raster

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"histogate/tests/process"
)

// Bounds on what one hostile file may cost.
const (
	hostileTime   = 50 * time.Millisecond * slowdown
	hostileMemory = 20 << 20
)

func pngOf(chunks ...[2]string) []byte {
	out := []byte(pngSignature)
	for _, c := range chunks {
		out = binary.BigEndian.AppendUint32(out, uint32(len(c[1])))
		out = append(out, c[0]+c[1]...)
		out = binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE([]byte(c[0]+c[1])))
	}
	return out
}

func ihdr(width, height int, depth, colour, interlaced byte) [2]string {
	b := binary.BigEndian.AppendUint32(nil, uint32(width))
	b = binary.BigEndian.AppendUint32(b, uint32(height))
	return [2]string{"IHDR", string(append(b, depth, colour, 0, 0, interlaced))}
}

func compressed(t testing.TB, b []byte) string {
	t.Helper()
	var out bytes.Buffer
	z := zlib.NewWriter(&out)
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func testImage(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("../../tests/testdata/images/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// manyScans repeats the last scan of a progressive JPEG.
func manyScans(t testing.TB, n int) []byte {
	data := testImage(t, "jpeg_420_prog.jpg")
	last := bytes.LastIndex(data, []byte{0xff, 0xda})
	scan := data[last : len(data)-2]
	return append(append(data[:last:last], bytes.Repeat(scan, n)...), 0xff, 0xd9)
}

// jpegClaiming has a sound header of another size than its data.
func jpegClaiming(t testing.TB, width, height uint16) []byte {
	data := testImage(t, "jpeg_420.jpg")
	at := bytes.Index(data, []byte{0xff, 0xc0})
	binary.BigEndian.PutUint16(data[at+5:], height)
	binary.BigEndian.PutUint16(data[at+7:], width)
	return data
}

// manyFrames is an animation of n frames.
func manyFrames(t testing.TB, n int) []byte {
	data := testImage(t, "webp_anim.webp")
	at := bytes.Index(data, []byte("ANMF"))
	size := 8 + int(binary.LittleEndian.Uint32(data[at+4:]))
	// A frame of 1x1 pixels: the lossless bitstream of one that is all black.
	const pixel = "VP8L\x0d\x00\x00\x00\x2f\x00\x00\x00\x00\x07\x10\x11\x11\x88\x88\xfe\x07\x00"
	frame := binary.LittleEndian.AppendUint32([]byte("ANMF"), uint32(16+len(pixel)))
	frame = append(append(frame, make([]byte, 16)...), pixel...)
	out := slices.Concat(data[:at+size], bytes.Repeat(frame, n-1))
	binary.LittleEndian.PutUint32(out[4:], uint32(len(out)-8))
	return out
}

// manyChunks has n unknown ones behind the picture.
func manyChunks(t testing.TB, n int) []byte {
	out := append(testImage(t, "webp_lossy_alpha.webp"), bytes.Repeat([]byte("ABCD\x00\x00\x00\x00"), n)...)
	binary.LittleEndian.PutUint32(out[4:], uint32(len(out)-8))
	return out
}

func TestHostile(t *testing.T) {
	rows := compressed(t, make([]byte, 224*(1+3*224)))
	many := func(n int, name, body string) []byte {
		chunks := append([][2]string{ihdr(224, 224, 8, 2, 0)}, slices.Repeat([][2]string{{name, body}}, n)...)
		return pngOf(append(chunks, [2]string{"IDAT", rows}, [2]string{"IEND"})...)
	}
	for _, c := range []struct {
		name string
		data []byte
		kind Kind // of the refusal; -1 if it is to be taken
	}{
		{"png header 15000x15000", pngOf(ihdr(15000, 15000, 8, 2, 0), [2]string{"IDAT", rows}), WrongSize},
		{"png header alone", pngOf(ihdr(15000, 15000, 8, 2, 0)), WrongSize},
		{"png profile of 200 MB", pngOf(ihdr(224, 224, 8, 2, 0), [2]string{"iCCP", "x\x00\x00" + compressed(t, make([]byte, 200<<20))},
			[2]string{"IDAT", rows}, [2]string{"IEND"}), -1},
		{"png rows of 200 MB", pngOf(ihdr(224, 224, 8, 2, 0), [2]string{"IDAT", compressed(t, make([]byte, 200<<20))}, [2]string{"IEND"}), -1},
		{"png of 500,000 empty chunks", many(500_000, "IDAT", ""), -1},
		{"png of 500,000 chunks", many(500_000, "IDAT", "x"), Unsupported},
		{"png of 500,000 unknown chunks", many(500_000, "abCd", "x"), -1},
		{"jpeg 64250x64250", jpegClaiming(t, 64250, 64250), WrongSize},
		{"jpeg of 1,000 scans", manyScans(t, 1000), Unsupported},
		{"jpeg of 1,000,000 streams", append(bytes.Repeat([]byte{0xff, 0xd8, 0xff, 0xd9}, 1_000_000), testImage(t, "jpeg_420.jpg")...), Unsupported},
		{"jpeg of 500,000 Exif segments", append(append([]byte{0xff, 0xd8}, bytes.Repeat([]byte("\xff\xe1\x00\x0aExif\x00\x00xx"), 500_000)...),
			testImage(t, "jpeg_420.jpg")[2:]...), -1},
		{"webp of 10,000 frames", manyFrames(t, 10_000), Unsupported},
		{"webp of 300,000 frames", manyFrames(t, 300_000), Unsupported},
		{"webp of 1,000,000 chunks", manyChunks(t, 1_000_000), Unsupported},
		{"webp with 8 MB behind it", append(testImage(t, "webp_lossy_alpha.webp"), make([]byte, 8<<20)...), -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			dst := make([]byte, 3*224*224)
			runtime.GC()
			before := resident(t, true)
			runtime.LockOSThread() // whose time is taken
			defer runtime.UnlockOSThread()
			start := process.ThreadCPU()
			err := Decode(c.data, 224, 224, Formats(), dst)
			took := process.ThreadCPU() - start
			if more := resident(t, false) - before; more > hostileMemory {
				t.Errorf("took %d KB of memory", more>>10)
			}
			// Another process may have had the caches, or half of the core.
			for range 20 {
				if took <= hostileTime {
					break
				}
				start := process.ThreadCPU()
				if again := Decode(c.data, 224, 224, Formats(), dst); (again == nil) != (err == nil) {
					t.Errorf("%v, then %v", err, again)
				}
				took = min(took, process.ThreadCPU()-start)
			}
			if took > hostileTime {
				t.Errorf("took %v", took)
			}
			var refused *Error
			if errors.As(err, &refused) && refused.Kind != c.kind || (err == nil) != (c.kind < 0) {
				t.Errorf("%v, want kind %v", err, c.kind)
			}
			t.Logf("%v: %v", took, err)
		})
	}
}

// resident is the peak of the process's resident memory; after a reset it is
// what is resident now.
func resident(t *testing.T, reset bool) int {
	t.Helper()
	if reset {
		if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
			t.Fatal(err)
		}
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	kb, err := strconv.Atoi(strings.Fields(peak)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kb << 10
}

func TestScansAndFramesInReason(t *testing.T) {
	for name, data := range map[string][]byte{"90 scans": manyScans(t, 80), "1,000 frames": manyFrames(t, maxFrames)} {
		if _, err := rgb(data, 224, 224); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
