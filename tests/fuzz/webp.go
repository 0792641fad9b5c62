package main

import (
	"bytes"
	"encoding/binary"
)

type riffChunk struct {
	name   string
	body   []byte
	parts  []riffChunk // of an ANMF, behind its 16 bytes of body
	lie    int         // added to the length
	unpads bool        // leaves out the byte that makes the length even
}

func splitRIFF(data []byte) []riffChunk {
	var chunks []riffChunk
	for at := 0; at+8 <= len(data); {
		n := int(binary.LittleEndian.Uint32(data[at+4:]))
		end := min(at+8+n, len(data))
		c := riffChunk{name: string(data[at : at+4]), body: bytes.Clone(data[at+8 : end])}
		if c.name == "ANMF" && len(c.body) > 16 {
			c.body, c.parts = c.body[:16:16], splitRIFF(c.body[16:])
		}
		chunks = append(chunks, c)
		at += 8 + n + n&1
	}
	return chunks
}

func joinRIFF(chunks []riffChunk) []byte {
	var out []byte
	for _, c := range chunks {
		body := append(bytes.Clone(c.body), joinRIFF(c.parts)...)
		out = append(out, c.name...)
		out = binary.LittleEndian.AppendUint32(out, uint32(max(0, len(body)+c.lie)))
		out = append(out, body...)
		if len(body)%2 == 1 && !c.unpads {
			out = append(out, 0)
		}
	}
	return out
}

func mutateWebP(data []byte, r *random) []byte {
	if chance(r, 10) {
		return rough(data, r)
	}
	chunks := splitRIFF(data[12:])
	if len(chunks) == 0 {
		return rough(data, r)
	}
	bitstreams(chunks, r)
	if chance(r, 4) {
		for range 1 + r.IntN(2) {
			if chunks = restructureRIFF(chunks, r); len(chunks) == 0 {
				break
			}
		}
	}
	body := joinRIFF(chunks)
	size := len(body) + 4
	if chance(r, 20) {
		size = max(0, size+r.IntN(20)-10)
	}
	out := append([]byte("RIFF"), binary.LittleEndian.AppendUint32(nil, uint32(size))...)
	out = append(append(out, "WEBP"...), body...)
	if chance(r, 15) {
		out = cut(out, r)
	}
	return out
}

// bitstreams changes the pixel data, the lossy ones behind their header mostly
// and the lossless ones in few places: there a bit may end the picture early.
func bitstreams(chunks []riffChunk, r *random) {
	for i := range chunks {
		c := &chunks[i]
		skip, most := 0, 1
		switch c.name {
		case "ANMF":
			bitstreams(c.parts, r)
			continue
		case "VP8 ":
			skip, most = 10, 1+len(c.body)/(10+r.IntN(500))
			if chance(r, 8) {
				skip = 0
			}
		case "VP8L":
			skip = 5
			if !chance(r, 3) { // the pixels follow the codes
				skip = len(c.body) / 2
			}
			most = 1 + r.IntN(3)
		case "ALPH":
			if chance(r, 2) {
				continue
			}
			most = 2
		case "VP8X":
			if !chance(r, 15) {
				continue
			}
		default:
			continue
		}
		if skip < len(c.body) {
			scribble(c.body[skip:], most, r)
		}
	}
}

var riffNames = []string{"VP8 ", "VP8L", "VP8X", "ALPH", "ANIM", "ANMF", "ICCP", "EXIF", "XMP ", "ABCD"}

func restructureRIFF(chunks []riffChunk, r *random) []riffChunk {
	c := &chunks[r.IntN(len(chunks))]
	if len(c.parts) > 0 && chance(r, 2) {
		c.parts = restructureRIFF(c.parts, r)
		return chunks
	}
	switch r.IntN(6) {
	case 0:
		c.name = riffNames[r.IntN(len(riffNames))]
	case 1:
		c.lie = r.IntN(9) - 4
	case 2:
		c.unpads = true
	case 3:
		c.body = append(cut(c.body, r), noise(4, r)...)
	case 4:
		scribble(c.body[:min(len(c.body), 20)], 1, r)
	default:
		return shuffle(chunks, riffChunk{name: riffNames[r.IntN(len(riffNames))], body: noise(40, r)}, r)
	}
	return chunks
}
