package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// TestQuirks pins what Pillow refuses, or takes, against what one would expect:
// mutants meet these too seldom to rely on them.
func TestQuirks(t *testing.T) {
	t.Chdir("../..")
	pillow, err := startOracle("build/tools/bin/python")
	if err != nil {
		t.Fatal(err)
	}
	defer pillow.close()
	check := func(name string, file []byte, taken bool) {
		t.Helper()
		result, disagreement, err := compare(pillow, file, picture{width: 3, height: 2})
		if err != nil {
			t.Fatal(err)
		}
		if disagreement != "" || (result.accepted == 1) != taken {
			t.Errorf("%s: %+v %s; want it taken: %v", name, result, disagreement, taken)
		}
	}

	ihdr := func(depth, colour, interlaced byte) pngChunk {
		return pngChunk{name: "IHDR", body: []byte{0, 0, 0, 3, 0, 0, 0, 2, depth, colour, 0, 0, interlaced}}
	}
	chunk := func(name, body string) pngChunk { return pngChunk{name: name, body: []byte(body)} }
	stream := func(rows string) pngChunk { return chunk("IDAT", string(zlibOf([]byte(rows), 6))) }
	rgb, grey, indexed := stream("\x00abcdefghi\x04jklmnopqr"), stream("\x00abc\x02abc"), stream("\x00\x00\x01\x02\x00\xfd\xfe\xff")
	end := chunk("IEND", "")
	control := func(sequence, width, height, x, y byte) pngChunk {
		return chunk("fcTL", string([]byte{0, 0, 0, sequence, 0, 0, 0, width, 0, 0, 0, height, 0, 0, 0, x, 0, 0, 0, y, 0, 1, 0, 1, 0, 0}))
	}
	plain := ihdr(8, 2, 0)
	for _, c := range []struct {
		name   string
		chunks []pngChunk
		taken  bool
	}{
		{"rows end after the first", []pngChunk{plain, stream("\x00abcdefghi"), end}, true},
		{"rows end within the first", []pngChunk{plain, stream("\x00abcdefgh"), end}, false},
		{"more rows than there should be", []pngChunk{plain, stream("\x00abcdefghi\x04jklmnopqr and more"), end}, true},
		{"filter 5", []pngChunk{plain, stream("\x00abcdefghi\x05jklmnopqr"), end}, false},
		{"no palette", []pngChunk{ihdr(8, 3, 0), indexed, end}, true},
		{"no palette, a transparent colour", []pngChunk{ihdr(8, 3, 0), chunk("tRNS", "\xff\x00"), indexed, end}, false},
		{"no palette, a transparent colour and a line feed", []pngChunk{ihdr(8, 3, 0), chunk("tRNS", "\x00\n"), indexed, end}, false},
		{"no palette, some transparent colours", []pngChunk{ihdr(8, 3, 0), chunk("tRNS", "\x00\x00"), indexed, end}, true},
		{"short palette", []pngChunk{ihdr(8, 3, 0), chunk("PLTE", "abcdef"), indexed, end}, true},
		{"palette of half a colour", []pngChunk{ihdr(8, 3, 0), chunk("PLTE", "ab"), indexed, end}, true},
		{"palette of 256 and a half", []pngChunk{ihdr(8, 3, 0), chunk("PLTE", strings.Repeat("x", 770)), indexed, end}, true},
		{"palette of 257", []pngChunk{ihdr(8, 3, 0), chunk("PLTE", strings.Repeat("x", 771)), indexed, end}, false},
		{"palette before the header of a grey", []pngChunk{ihdr(8, 3, 0), chunk("PLTE", strings.Repeat("xyz", 120)), ihdr(8, 0, 0), grey, end}, true},
		{"palette before the header of an RGB", []pngChunk{ihdr(8, 3, 0), chunk("PLTE", "abc"), plain, rgb, end}, false},
		{"short transparency", []pngChunk{plain, chunk("tRNS", "abcde"), rgb, end}, false},
		{"short transparency after the picture", []pngChunk{plain, rgb, chunk("tRNS", "abcde"), end}, false},
		{"short gamma after the picture", []pngChunk{plain, rgb, chunk("gAMA", "abc"), end}, false},
		{"profile of another method", []pngChunk{plain, chunk("iCCP", "x\x00\x01"), rgb, end}, false},
		{"profile that is none", []pngChunk{plain, chunk("iCCP", "x\x00\x00abc"), rgb, end}, true},
		{"name that is none after the picture", []pngChunk{plain, rgb, chunk("ab d", ""), chunk("gAMA", "abc"), end}, true},
		{"name that is none before the picture", []pngChunk{plain, chunk("ab d", ""), rgb, end}, false},
		{"data of another name", []pngChunk{plain, chunk("IDAT", string(rgb.body[:9])), chunk("DDAT", string(rgb.body[9:])), end}, true},
		{"data with a chunk between", []pngChunk{plain, chunk("IDAT", string(rgb.body[:9])), chunk("tEXt", "x"), chunk("IDAT", string(rgb.body[9:])), end}, false},
		{"frame that is a part", []pngChunk{plain, control(0, 2, 1, 1, 1), stream("\x00abcdef"), end}, true},
		{"frame of nothing", []pngChunk{plain, control(0, 0, 1, 1, 1), stream("\x00abcdef"), end}, false},
		{"frame that sticks out", []pngChunk{plain, control(0, 3, 2, 1, 0), rgb, end}, false},
		{"frame with data of its own", []pngChunk{plain, control(0, 3, 2, 0, 0), chunk("fdAT", "\x00\x00\x00\x01"+string(rgb.body)), end}, true},
		{"frame with data of a wrong number", []pngChunk{plain, control(0, 3, 2, 0, 0), chunk("fdAT", "\x00\x00\x00\x02"+string(rgb.body)), end}, false},
		{"interlace method 7", []pngChunk{ihdr(8, 0, 7), stream("\x00a\x00b\x00c\x00def"), end}, true},
		{"filter method 1", []pngChunk{chunk("IHDR", "\x00\x00\x00\x03\x00\x00\x00\x02\x08\x02\x00\x01\x00"), rgb, end}, false},
		{"compression method 9", []pngChunk{chunk("IHDR", "\x00\x00\x00\x03\x00\x00\x00\x02\x08\x02\x09\x00\x00"), rgb, end}, true},
	} {
		check("PNG: "+c.name, joinPNG(c.chunks), c.taken)
	}

	data, err := os.ReadFile("tests/testdata/images/jpeg_420.jpg")
	if err != nil {
		t.Fatal(err)
	}
	resolution := func(header, kind, count, value string) string {
		return "Exif\x00\x00" + header + "\x00\x00\x00\x08\x00\x02\x01\x28\x00\x03\x00\x00\x00\x01\x00\x02\x00\x00\x01\x1a\x00" + kind +
			"\x00\x00\x00" + count + value
	}
	tiff := "MM\x00\x2a"
	for _, c := range []struct {
		name, segment string
		marker        byte
		taken         bool
	}{
		{"JFIF without a version", "JFIF", 0xe0, false},
		{"JFIF without a resolution", "JFIF\x00\x01\x01", 0xe0, true},
		{"Adobe without a version", "Adobe\x00", 0xee, false},
		{"Adobe without a transform", "Adobe\x00\x64", 0xee, true},
		{"profile without its number of parts", "ICC_PROFILE\x00\x01", 0xe2, false},
		{"resolution of one byte", resolution(tiff, "\x01", "\x01", "5\x00\x00\x00"), 0xe1, false},
		{"resolution of two bytes", resolution(tiff, "\x01", "\x02", "55\x00\x00"), 0xe1, true},
		{"resolution of a digit", resolution(tiff, "\x02", "\x02", "5\x00\x00\x00"), 0xe1, false},
		{"resolution of a letter", resolution(tiff, "\x02", "\x02", "x\x00\x00\x00"), 0xe1, true},
		{"resolution of no letter", resolution(tiff, "\x02", "\x01", "\x00\x00\x00\x00"), 0xe1, false},
		{"resolution in what is BigTIFF by half", resolution("MM\x00\x2b", "\x01", "\x01", "5\x00\x00\x00"), 0xe1, false},
		{"resolution in BigTIFF", resolution("II\x2b\x00", "\x01", "\x01", "5\x00\x00\x00"), 0xe1, true},
		{"resource without a name", "Photoshop 3.0\x008BIM\x04\x04", 0xed, false},
		{"resource with half a code", "Photoshop 3.0\x008BIM\x04", 0xed, true},
		{"resolution that is too short, then no name", "Photoshop 3.0\x008BIM\x03\xed\x00\x00\x00\x00\x00\x02xx8BIM\x04\x04", 0xed, true},
	} {
		var parts []jpegPart
		for _, p := range splitJPEG(bytes.Clone(data)) {
			if p.marker == 0xe0 { // its resolution would end the search for one
				p = jpegPart{marker: c.marker, segment: []byte(c.segment)}
			}
			parts = append(parts, p)
		}
		check("JPEG: "+c.name, joinJPEG(parts), c.taken)
	}
}
