package main

import (
	"bytes"
	"encoding/binary"
)

// jpegPart is a marker with its segment and what follows up to the next
// marker, which are the data of a scan.
type jpegPart struct {
	marker  byte
	segment []byte // without the length; nil if the marker has none
	data    []byte
	lie     int // added to the length
}

func splitJPEG(data []byte) []jpegPart {
	var parts []jpegPart
	for at := 0; at+2 <= len(data) && data[at] == 0xff; {
		p := jpegPart{marker: data[at+1]}
		at += 2
		if p.marker != 0xd8 && p.marker != 0xd9 {
			if at+2 > len(data) {
				break
			}
			end := min(at+int(binary.BigEndian.Uint16(data[at:])), len(data))
			if end < at+2 {
				break
			}
			p.segment = bytes.Clone(data[at+2 : end])
			at = end
		}
		start := at
		for at < len(data) && !(data[at] == 0xff && at+1 < len(data) && data[at+1] != 0 && data[at+1]&0xf8 != 0xd0) {
			at++
		}
		p.data = bytes.Clone(data[start:at])
		parts = append(parts, p)
	}
	return parts
}

func joinJPEG(parts []jpegPart) []byte {
	var out []byte
	for _, p := range parts {
		out = append(out, 0xff, p.marker)
		if p.segment != nil {
			out = binary.BigEndian.AppendUint16(out, uint16(len(p.segment)+2+p.lie))
			out = append(out, p.segment...)
		}
		out = append(out, p.data...)
	}
	return out
}

func mutateJPEG(data []byte, r *random) []byte {
	if chance(r, 10) {
		return rough(data, r)
	}
	parts := splitJPEG(data)
	if len(parts) == 0 {
		return rough(data, r)
	}
	// The data of the scans, mostly without making or breaking a marker.
	for i := range parts {
		p := &parts[i]
		if p.marker != 0xda || chance(r, 4) {
			continue
		}
		before := bytes.Clone(p.data)
		scribble(p.data, 1+len(p.data)/(10+r.IntN(500)), r)
		if !chance(r, 8) {
			for k := range p.data {
				if before[k] == 0xff || p.data[k] == 0xff || k > 0 && before[k-1] == 0xff {
					p.data[k] = before[k]
				}
			}
		}
	}
	if chance(r, 2) {
		for range 1 + r.IntN(3) {
			tableJPEG(parts, r)
		}
	}
	if chance(r, 3) {
		for range 1 + r.IntN(2) {
			if parts = restructureJPEG(parts, r); len(parts) == 0 {
				break
			}
		}
	}
	out := joinJPEG(parts)
	if chance(r, 15) {
		out = cut(out, r)
	}
	return out
}

// tableJPEG changes a table, a frame's header or a scan's.
func tableJPEG(parts []jpegPart, r *random) {
	p := &parts[r.IntN(len(parts))]
	s := p.segment
	if len(s) < 6 {
		return
	}
	switch {
	case p.marker == 0xdb: // any quantisation is a valid one
		scribble(s[1:], 8, r)
	case p.marker == 0xc4 && len(s) > 17: // the order of the symbols, or anything
		if chance(r, 4) {
			scribble(s, 1, r)
		} else {
			a, b := 17+r.IntN(len(s)-17), 17+r.IntN(len(s)-17)
			s[a], s[b] = s[b], s[a]
		}
	case p.marker >= 0xc0 && p.marker <= 0xcf && p.marker != 0xc4 && p.marker != 0xc8 && p.marker != 0xcc:
		switch r.IntN(5) {
		case 0:
			p.marker = []byte{0xc0, 0xc1, 0xc2, 0xc3, 0xc5, 0xc9, 0xca, 0xcb, 0xde}[r.IntN(9)]
		case 1:
			s[1+r.IntN(4)] ^= 1 << r.IntN(4)
		default:
			scribble(s, 1, r)
		}
	case p.marker == 0xda || chance(r, 2):
		scribble(s, 1, r)
	}
}

func restructureJPEG(parts []jpegPart, r *random) []jpegPart {
	p := &parts[r.IntN(len(parts))]
	switch r.IntN(5) {
	case 0:
		if p.segment != nil {
			p.lie = r.IntN(7) - 3
		}
	case 1:
		p.segment = cut(p.segment, r)
		if len(p.segment) == 0 && chance(r, 2) {
			p.segment = nil
		}
	case 2:
		p.data = append(cut(p.data, r), noise(6, r)...)
	default:
		parts = shuffle(parts, randomSegment(r), r)
	}
	return parts
}

// randomSegment is a segment of which readers read something, or a bare marker.
func randomSegment(r *random) jpegPart {
	switch r.IntN(9) {
	case 0:
		return jpegPart{marker: 0xe0, segment: append([]byte("JFIF\x00\x01\x01\x01\x00\x48"), noise(4, r)...)[:r.IntN(7)+4]}
	case 1:
		return jpegPart{marker: 0xe1, segment: append([]byte("Exif\x00\x00"), randomExif(r)...)}
	case 2:
		return jpegPart{marker: 0xe2, segment: append([]byte("ICC_PROFILE\x00"), noise(6, r)...)}
	case 3:
		list := append([]byte("Photoshop 3.0\x008BIM\x03\xed"), noise(8, r)...)
		list = append(list, []byte("8BIM\x04\x04\x00\x00\x00\x00\x00")...)
		return jpegPart{marker: 0xed, segment: list[:14+r.IntN(len(list)-14)]}
	case 4:
		return jpegPart{marker: 0xee, segment: append([]byte("Adobe\x00\x64\x00\x00\x00\x00"), byte(r.IntN(4)))[:r.IntN(4)+9]}
	case 5:
		return jpegPart{marker: 0xe2, segment: append([]byte("MPF\x00"), randomExif(r)...)}
	case 6:
		return jpegPart{marker: 0xdd, segment: []byte{0, byte(r.IntN(8))}}
	case 7:
		return jpegPart{marker: byte(0xc0 + r.IntN(64)), segment: noise(20, r)}
	default:
		return jpegPart{marker: byte(r.IntN(256))}
	}
}

// randomExif is a directory with a resolution, of any type and length.
func randomExif(r *random) []byte {
	b := []byte("II\x2a\x00\x08\x00\x00\x00\x03\x00")
	if chance(r, 10) {
		scribble(b, 1, r)
	}
	for _, tag := range []uint16{0x128, 0x11a, 0x112} {
		if chance(r, 6) {
			tag ^= 1
		}
		b = binary.LittleEndian.AppendUint16(b, tag)
		b = binary.LittleEndian.AppendUint16(b, uint16(r.IntN(14)))
		b = binary.LittleEndian.AppendUint32(b, uint32(r.IntN(4)))
		if chance(r, 2) {
			b = append(b, byte('0'+r.IntN(12)), 0, 0, 0)
		} else {
			b = append(b, byte(r.IntN(80)), 0, 0, 0)
		}
	}
	return cut(append(b, noise(40, r)...), r)
}
