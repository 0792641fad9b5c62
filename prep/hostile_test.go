package prep

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
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

// What one hostile request may cost beyond the memory of its body.
const (
	hostileTime   = 50 * time.Millisecond
	hostileMemory = 20 << 20
)

// testPicture is a picture of tests/testdata, 224x224 pixels.
func testPicture(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("../tests/testdata/images/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func deflated(t *testing.T, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := zlib.NewWriter(&out)
	if _, err := z.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func pngChunk(name string, payload ...byte) []byte {
	chunk := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))
	chunk = append(append(chunk, name...), payload...)
	return binary.BigEndian.AppendUint32(chunk, crc32.ChecksumIEEE(chunk[4:]))
}

// pngDeclaring is a PNG whose header declares the size; its data are of black
// pixels, 224x224. extra are chunks before these.
func pngDeclaring(t *testing.T, side uint32, extra ...[]byte) []byte {
	header := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, side), side)
	return slices.Concat([]byte("\x89PNG\r\n\x1a\n"), pngChunk("IHDR", append(header, 8, 2, 0, 0, 0)...), slices.Concat(extra...),
		pngChunk("IDAT", deflated(t, make([]byte, 224*(1+3*224)))...), pngChunk("IEND"))
}

func bmpDeclaring(side uint32) []byte {
	header := []byte("BM\x00\x00\x00\x00\x00\x00\x00\x00\x36\x00\x00\x00\x28\x00\x00\x00")
	header = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(header, side), side)
	return slices.Concat(header, []byte{1, 0, 24, 0}, make([]byte, 24), make([]byte, 3*224*224))
}

func jpegDeclaring(t *testing.T, side uint16) []byte {
	data := testPicture(t, "jpeg_420.jpg")
	at := bytes.Index(data, []byte{0xff, 0xc0})
	binary.BigEndian.PutUint16(data[at+5:], side)
	binary.BigEndian.PutUint16(data[at+7:], side)
	return data
}

// jpegOfScans repeats the last scan of a progressive JPEG.
func jpegOfScans(t *testing.T, n int) []byte {
	data := testPicture(t, "jpeg_420_prog.jpg")
	last := bytes.LastIndex(data, []byte{0xff, 0xda})
	return slices.Concat(data[:last], bytes.Repeat(data[last:len(data)-2], n), []byte{0xff, 0xd9})
}

// webpOfFrames is an animation whose frames but for the first are a black pixel.
func webpOfFrames(t *testing.T, n int) []byte {
	data := testPicture(t, "webp_anim.webp")
	at := bytes.Index(data, []byte("ANMF"))
	first := data[:at+8+int(binary.LittleEndian.Uint32(data[at+4:]))]
	const pixel = "VP8L\x0d\x00\x00\x00\x2f\x00\x00\x00\x00\x07\x10\x11\x11\x88\x88\xfe\x07\x00"
	frame := binary.LittleEndian.AppendUint32([]byte("ANMF"), uint32(16+len(pixel)))
	frame = append(append(frame, make([]byte, 16)...), pixel...)
	out := slices.Concat(first, bytes.Repeat(frame, n-1))
	binary.LittleEndian.PutUint32(out[4:], uint32(len(out)-8))
	return out
}

// One request cannot cost more than its share, whatever it holds: all of stage 1,
// from the body on.
func TestHostileRequests(t *testing.T) {
	deep := func(open, inside, end string) []byte {
		n := 10 << 20 / (len(open) + len(end))
		return []byte(`{"slide_name":"S1","unknown":` + strings.Repeat(open, n) + inside + strings.Repeat(end, n) + `}`)
	}
	wide := []byte(`{"slide_name":"S1","unknown":[` + strings.Repeat(`[[[[{"a":[0]}]]]],`, 10<<20/18) + `0]}`)
	for _, c := range []struct {
		name string
		body []byte
		code Code   // empty if it is taken
		says string // in the error
	}{
		{"PNG header 15000x15000", tileBody(pngDeclaring(t, 15000), "S1", 7), WrongShape, "15000x15000"},
		{"BMP 60000x60000", tileBody(bmpDeclaring(60000), "S1", 7), WrongShape, "60000x60000"},
		{"JPEG claiming 64250x64250", tileBody(jpegDeclaring(t, 64250), "S1", 7), WrongShape, "64250x64250"},
		{"JPEG of 1,000 scans", tileBody(jpegOfScans(t, 1000), "S1", 7), InvalidImage, "more than 100 scans"},
		{"WebP of 10,000 frames", tileBody(webpOfFrames(t, 10_000), "S1", 7), InvalidImage, "more than 1000 frames"},
		{"PNG with a profile of 200 MB", tileBody(pngDeclaring(t, 224,
			pngChunk("iCCP", append([]byte("x\x00\x00"), deflated(t, make([]byte, 200<<20))...)...)), "S1", 7), "", ""},
		{"10 MB of nested arrays", deep("[", "", "]"), InvalidRequest, "nested deeper than 128 levels"},
		{"10 MB of nested objects", deep(`{"a":`, "0", "}"), InvalidRequest, "nested deeper than 128 levels"},
		{"10 MB of arrays side by side", wide, InvalidRequest, "missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := NewPreparer(testSpec())
			once := func() (time.Duration, error) {
				start := process.ThreadCPU()
				r, err := ParseRequest(c.body)
				if err == nil {
					var sample *Sample
					if sample, err = p.Prepare(r); err == nil {
						sample.Release()
					}
				}
				return process.ThreadCPU() - start, err
			}
			runtime.LockOSThread() // whose time is taken
			defer runtime.UnlockOSThread()
			runtime.GC()
			before := resident(t, true)
			took, err := once()
			more := resident(t, false) - before
			// The image in the body may be in memory once more, decoded from base64.
			if more > hostileMemory+base64.StdEncoding.DecodedLen(len(c.body)) {
				t.Errorf("took %d KB of memory", more>>10)
			}
			limit, standard := hostileTime, time.Hour
			for range 20 { // another process may have had the caches, or half of the core
				if took <= limit {
					break
				}
				again, _ := once()
				took = min(took, again)
				// Where encoding/json needs longer only to walk over the body, the machine is slow.
				start := process.ThreadCPU()
				_ = json.Valid(c.body)
				standard = min(standard, process.ThreadCPU()-start)
				limit = max(hostileTime, standard)
			}
			// The scanner is some 40 times as slow under the race detector.
			if took > limit && !(raceDetector && c.code == InvalidRequest) {
				t.Errorf("took %v, more than %v", took, limit)
			}
			if c.code == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			var refused *Error
			if !errors.As(err, &refused) || refused.Code != c.code || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the error is %v, want %s and %q", err, c.code, c.says)
			}
			t.Logf("%v, %d KB: %v", took, more>>10, err)
		})
	}
}

// resident is the peak of the process's resident memory in bytes; after a reset
// it is what is resident now.
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
