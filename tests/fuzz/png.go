package main

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"hash/crc32"
	"io"
	"slices"
)

type pngChunk struct {
	name string
	body []byte
	// What is written instead of the right length and checksum, if lie is set.
	lie    bool
	length uint32
	crc    uint32
}

// splitPNG takes a sound PNG apart: its chunks, with one IDAT whose body is the
// inflated rows.
func splitPNG(data []byte) (chunks []pngChunk, ok bool) {
	var stream []byte
	image := -1
	for at := 8; at+12 <= len(data); {
		n := int(binary.BigEndian.Uint32(data[at:]))
		if at+12+n > len(data) {
			break
		}
		c := pngChunk{name: string(data[at+4 : at+8]), body: bytes.Clone(data[at+8 : at+8+n])}
		at += 12 + n
		if c.name == "IDAT" {
			stream = append(stream, c.body...)
			if image < 0 {
				image = len(chunks)
				chunks = append(chunks, c)
			}
			continue
		}
		chunks = append(chunks, c)
	}
	if image < 0 {
		return nil, false
	}
	z, err := zlib.NewReader(bytes.NewReader(stream))
	if err != nil {
		return nil, false
	}
	rows, err := io.ReadAll(z)
	chunks[image].body = rows
	return chunks, err == nil
}

func joinPNG(chunks []pngChunk) []byte {
	out := []byte("\x89PNG\r\n\x1a\n")
	for _, c := range chunks {
		length, crc := uint32(len(c.body)), crc32.ChecksumIEEE(append([]byte(c.name), c.body...))
		if c.lie {
			length, crc = c.length, c.crc
		}
		out = binary.BigEndian.AppendUint32(out, length)
		out = append(append(out, c.name...), c.body...)
		out = binary.BigEndian.AppendUint32(out, crc)
	}
	return out
}

func mutatePNG(data []byte, r *random) []byte {
	if chance(r, 10) {
		return rough(data, r)
	}
	var chunks []pngChunk
	var ok bool
	if chance(r, 4) {
		chunks, ok = randomPNG(r), true
	} else {
		chunks, ok = splitPNG(data)
	}
	if !ok {
		return rough(data, r)
	}
	image := 0
	for i, c := range chunks {
		if c.name == "IDAT" {
			image = i
		}
	}
	rows := chunks[image].body
	scribble(rows, 1+len(rows)/20, r)
	if len(rows) < 20_000 && !chance(r, 4) {
		repairFilters(chunks[0].body, rows)
	}
	if chance(r, 12) { // more rows than there should be, or fewer
		rows = append(cut(rows, r), noise(30, r)...)
	}
	stream := deflate(rows, r)
	if chance(r, 8) {
		switch r.IntN(3) {
		case 0:
			stream = cut(stream, r)
		case 1:
			scribble(stream[len(stream)-min(len(stream), 12):], 2, r)
		default:
			scribble(stream, 3, r)
		}
	}
	parts := splitStream(stream, r)
	chunks = append(chunks[:image:image], append(parts, chunks[image+1:]...)...)
	if chance(r, 4) {
		for range 1 + r.IntN(2) {
			chunks = restructurePNG(chunks, image, r)
			image = min(image, len(chunks)-1)
		}
	}
	out := joinPNG(chunks)
	if chance(r, 15) {
		out = cut(out, r)
	}
	return out
}

// repairFilters makes the filter byte of each row a valid one, where the rows
// are not interlaced.
func repairFilters(header, rows []byte) {
	width, depth, colour := int(binary.BigEndian.Uint32(header)), int(header[8]), header[9]
	channels := map[byte]int{0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
	stride := (width*depth*channels+7)/8 + 1
	if header[12] != 0 {
		return
	}
	for at := 0; at < len(rows); at += stride {
		rows[at] %= 5
	}
}

func deflate(rows []byte, r *random) []byte {
	return zlibOf(rows, r.IntN(11)-1) // from the default to the best
}

func zlibOf(rows []byte, level int) []byte {
	var out bytes.Buffer
	z, err := zlib.NewWriterLevel(&out, level)
	if err == nil {
		_, err = z.Write(rows)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		panic(err)
	}
	return out.Bytes()
}

// splitStream makes one or more chunks of image data.
func splitStream(stream []byte, r *random) []pngChunk {
	var parts []pngChunk
	for chance(r, 2) && len(parts) < 20 {
		n := r.IntN(len(stream) + 1)
		if chance(r, 3) { // within the end, where the checksum is
			n = max(0, len(stream)-r.IntN(12))
		}
		parts = append(parts, pngChunk{name: "IDAT", body: stream[:n]})
		stream = stream[n:]
	}
	return append(parts, pngChunk{name: "IDAT", body: stream})
}

// pngNames are the chunks that readers know, and some that none does.
var pngNames = []string{"IHDR", "PLTE", "IDAT", "IEND", "tRNS", "gAMA", "cHRM", "sRGB", "pHYs", "tEXt", "zTXt", "iTXt", "iCCP",
	"eXIf", "acTL", "fcTL", "fdAT", "DDAT", "sBIT", "abCd", "ABCD", "a_09", "ab d", "IDAt"}

// restructurePNG changes the chunks; their checksums stay right, mostly.
func restructurePNG(chunks []pngChunk, image int, r *random) []pngChunk {
	c := &chunks[r.IntN(len(chunks))]
	switch r.IntN(9) {
	case 0:
		c.name = pngNames[r.IntN(len(pngNames))]
	case 1:
		c.body = cut(c.body, r)
	case 2:
		c.body = bytes.Clone(c.body)
		scribble(c.body, 2, r)
	case 3:
		c.lie, c.length, c.crc = true, uint32(len(c.body)), r.Uint32()
	case 4:
		c.lie, c.length = true, uint32(max(0, len(c.body)+r.IntN(9)-4))
		c.crc = crc32.ChecksumIEEE(append([]byte(c.name), c.body...))
	case 5: // one of IHDR's fields
		h := bytes.Clone(chunks[0].body)
		if len(h) == 13 {
			switch r.IntN(5) {
			case 0:
				h[8] = []byte{1, 2, 4, 8, 16, 3, 0}[r.IntN(7)]
			case 1:
				h[9] = byte(r.IntN(8))
			case 2:
				h[10+r.IntN(3)] = byte(r.IntN(3))
			case 3:
				h[3+4*r.IntN(2)] ^= 1 << r.IntN(4)
			default:
				scribble(h, 1, r)
			}
		}
		chunks[0].body = h
	case 6: // an animation, with a frame that lies within the picture or not
		var frame [26]byte
		binary.BigEndian.PutUint32(frame[0:], uint32(r.IntN(8)/7))
		copy(frame[4:12], chunks[0].body)
		if chance(r, 2) && len(chunks[0].body) >= 8 {
			w, h := binary.BigEndian.Uint32(chunks[0].body), binary.BigEndian.Uint32(chunks[0].body[4:])
			if w > 0 && w < 1000 && h > 0 && h < 1000 {
				x, y := uint32(r.IntN(int(w))), uint32(r.IntN(int(h)))
				binary.BigEndian.PutUint32(frame[4:], w-x)
				binary.BigEndian.PutUint32(frame[8:], h-y)
				binary.BigEndian.PutUint32(frame[12:], x)
				binary.BigEndian.PutUint32(frame[16:], y)
			}
		}
		made := []pngChunk{{name: "fcTL", body: frame[:]}}
		if chance(r, 2) {
			made = append(made, pngChunk{name: "acTL", body: []byte{0, 0, 0, byte(r.IntN(4)), 0, 0, 0, 0}})
		}
		at := min(1+r.IntN(image+1), len(chunks))
		rest := slices.Concat(made, chunks[at:])
		chunks = append(chunks[:at:at], rest...)
		if chance(r, 3) { // the picture's data as those of the frame
			for i := range chunks {
				if chunks[i].name == "IDAT" {
					chunks[i].name = "fdAT"
					chunks[i].body = append([]byte{0, 0, 0, byte(i - at)}, chunks[i].body...)
				}
			}
		}
	default:
		made := pngChunk{name: pngNames[r.IntN(len(pngNames))], body: noise(60, r)}
		if made.name == "IHDR" || made.name == "fcTL" || chance(r, 4) {
			made.body = bytes.Clone(chunks[0].body)
		}
		if made.name == "iCCP" || made.name == "zTXt" || made.name == "tRNS" {
			for i := range made.body {
				made.body[i] = []byte{0, 0xff, 0xff, 0xff, 10}[r.IntN(5)]
			}
		}
		if made.name == "PLTE" && chance(r, 2) {
			made.body = noise(800, r)
		}
		chunks = shuffle(chunks, made, r)
	}
	if len(chunks) == 0 {
		return []pngChunk{{name: "IEND"}}
	}
	return chunks
}

// randomPNG is a small picture of noise, of any kind of pixel.
func randomPNG(r *random) []pngChunk {
	kinds := [][2]byte{{1, 0}, {2, 0}, {4, 0}, {8, 0}, {8, 2}, {16, 2}, {1, 3}, {2, 3}, {4, 3}, {8, 3}, {8, 4}, {16, 4}, {8, 6}, {16, 6}}
	kind := kinds[r.IntN(len(kinds))]
	width, height := 1+r.IntN(40), 1+r.IntN(40)
	header := make([]byte, 13)
	binary.BigEndian.PutUint32(header, uint32(width))
	binary.BigEndian.PutUint32(header[4:], uint32(height))
	header[8], header[9], header[12] = kind[0], kind[1], byte(r.IntN(2))
	bits := int(kind[0]) * map[byte]int{0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind[1]]

	passes := [][4]int{{0, 0, 1, 1}}
	if header[12] == 1 {
		passes = [][4]int{{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}}
	}
	var rows []byte
	for _, p := range passes {
		w, h := (width-p[0]+p[2]-1)/p[2], (height-p[1]+p[3]-1)/p[3]
		if w <= 0 {
			continue
		}
		for range h {
			rows = append(rows, byte(r.IntN(5)))
			for range (w*bits + 7) / 8 {
				rows = append(rows, byte(r.IntN(256)))
			}
		}
	}
	chunks := []pngChunk{{name: "IHDR", body: header}}
	if kind[1] == 3 && !chance(r, 10) {
		chunks = append(chunks, pngChunk{name: "PLTE", body: noise(768, r)})
	}
	if chance(r, 4) {
		chunks = append(chunks, pngChunk{name: "tRNS", body: noise(10, r)})
	}
	return append(chunks, pngChunk{name: "IDAT", body: rows}, pngChunk{name: "IEND"})
}
