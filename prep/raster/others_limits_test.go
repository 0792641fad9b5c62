package raster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"histogate/tests/process"
)

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
		runtime.LockOSThread() // whose time is taken
		var before, after runtime.MemStats
		dst := make([]byte, 3*224*224)
		runtime.ReadMemStats(&before)
		start := process.ThreadCPU()
		err := Decode(c.data, 224, 224, Formats(), dst)
		took := process.ThreadCPU() - start
		runtime.ReadMemStats(&after)
		runtime.UnlockOSThread()
		var e *Error
		if !errors.As(err, &e) || e.Kind != c.kind {
			t.Errorf("%s: %v", c.name, err)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 || took > 50*time.Millisecond*slowdown {
			t.Errorf("%s: %d bytes and %v", c.name, used, took)
		}
	}
}

// TestTIFFInParallel: pictures must not mix, and a damaged one must not spoil those beside
// it.
func TestTIFFInParallel(t *testing.T) {
	seeds := smallSeeds(t)
	files := [][]byte{seeds["RGB-tiff_lzw.tif"], seeds["P-packbits.tif"], seeds["L-tiff_adobe_deflate.tif"], seeds["turned3.tif"]}
	var want [4][]byte
	for i, data := range files {
		want[i] = make([]byte, 3*21*18)
		if err := Decode(data, 21, 18, Formats(), want[i]); err != nil {
			t.Fatal(err)
		}
	}
	damaged := bytes.Clone(files[0])
	clear(damaged[100:600])
	var workers sync.WaitGroup
	workers.Go(func() {
		for range 100 {
			var e *Error
			err := Decode(damaged, 21, 18, Formats(), make([]byte, 3*21*18))
			if !errors.As(err, &e) || e.Kind != Damaged {
				t.Errorf("the damaged file: %v", err)
			}
		}
	})
	for w := range 4 {
		workers.Go(func() {
			got := make([]byte, 3*21*18)
			for n := range 100 {
				i := (w + n) % len(files)
				before := bytes.Clone(files[i])
				err := Decode(files[i], 21, 18, Formats(), got)
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

// TestTIFFMemoryIsFlat: neither pictures nor failures stay in memory.
func TestTIFFMemoryIsFlat(t *testing.T) {
	count := 150
	if v := os.Getenv("OTHERS_TIFF_DECODES"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal(err)
		}
		count = n
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
			if err := Decode(good, 224, 224, Formats(), dst); err != nil {
				t.Fatal(err)
			}
			if err := Decode(bad, 224, 224, Formats(), dst); err == nil {
				t.Fatal("damaged data are taken")
			}
		}
	}
	decode(100)
	debug.FreeOSMemory() // what is garbage does not count
	before := rss(t)
	start := time.Now()
	decode(count)
	took := time.Since(start)
	debug.FreeOSMemory()
	grown := rss(t) - before
	t.Logf("%d decodes and as many refusals: %d KiB more; %v each", count, grown>>10, took/time.Duration(2*count))
	if grown > 16<<20 {
		t.Errorf("resident memory has grown by %d KiB", grown>>10)
	}
}

func BenchmarkOthers(b *testing.B) {
	seeds := smallSeeds(b)
	for _, name := range []string{"RGB-tiff_lzw.tif", "RGB-tiff_adobe_deflate.tif", "RGB.gif", "RGB.bmp"} {
		dst := make([]byte, 3*21*18)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := Decode(seeds[name], 21, 18, Formats(), dst); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// encode writes the chunks as a little-endian classic TIFF of one grey byte a pixel.
func (m *tiffImage) encode() []byte {
	n := uint32(len(m.chunks))
	const tags = 10
	const arrays = 8 + 2 + 12*tags + 4 // the place of the offsets and lengths of strips
	offsetsAt, lengthsAt := uint32(arrays), arrays+4*n
	at := lengthsAt + 4*n
	var offsets, lengths, pixels []byte
	le := binary.LittleEndian
	for _, chunk := range m.chunks {
		offsets = le.AppendUint32(offsets, at)
		lengths = le.AppendUint32(lengths, uint32(len(chunk)))
		pixels = append(pixels, chunk...)
		at += uint32(len(chunk))
	}
	if n == 1 { // a single value is in the directory itself
		offsetsAt, lengthsAt = le.Uint32(offsets), le.Uint32(lengths)
	}
	out := append(make([]byte, 0, at), "II*\x00\x08\x00\x00\x00"...)
	out = le.AppendUint16(out, tags)
	for _, tag := range [tags]struct {
		tag, kind uint16
		n, value  uint32
	}{
		{tagWidth, typeLong, 1, uint32(m.width)},
		{tagHeight, typeLong, 1, uint32(m.height)},
		{tagBits, typeShort, 1, 8},
		{tagCompression, typeShort, 1, uint32(m.compression)},
		{tagPhotometric, typeShort, 1, blackIsZero},
		{tagStripOffsets, typeLong, n, offsetsAt},
		{tagSamples, typeShort, 1, 1},
		{tagRowsPerStrip, typeLong, 1, uint32(m.chunkHeight)},
		{tagStripByteCounts, typeLong, n, lengthsAt},
		{tagPlanar, typeShort, 1, 1},
	} {
		out = le.AppendUint16(out, tag.tag)
		out = le.AppendUint16(out, tag.kind)
		out = le.AppendUint32(out, tag.n)
		out = le.AppendUint32(out, tag.value)
	}
	out = le.AppendUint32(out, 0) // no further directory
	out = append(append(out, offsets...), lengths...)
	return append(out, pixels...)
}
