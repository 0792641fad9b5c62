package raster

// #include "jpeg.h"
import "C"

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"unsafe"
)

func isJPEG(data []byte) bool {
	return bytes.HasPrefix(data, []byte("\xff\xd8\xff"))
}

func decodeJPEG(data []byte, width, height int, rgb []byte) error {
	j := jpegReader{data: data, pos: 2}
	ok := j.open()
	if j.sized && (j.width != width || j.height != height) {
		return wrongSize(JPEG, j.width, j.height, width, height)
	}
	if !ok || !j.sized {
		return damaged(JPEG)
	}
	if j.lossless {
		return refuse(Unsupported, JPEG, "lossless JPEG is not taken; send a baseline JPEG or a PNG")
	}
	return refused(JPEG, C.hg_jpeg_read((*C.uint8_t)(unsafe.SliceData(data)), C.size_t(len(data)), C.size_t(width), C.size_t(height),
		C.int(j.components), maxScans, (*C.uint8_t)(unsafe.SliceData(rgb))))
}

// jpegReader walks the markers before the first scan and judges them as Pillow
// does. It reads them before libjpeg does and is stricter with some: what it
// refuses libjpeg does not see.
type jpegReader struct {
	data []byte
	pos  int // of the next byte to read

	sized         bool
	width, height int
	components    int
	lossless      bool

	icc  []byte // the fragment of an ICC profile that is first in order
	exif []byte // all Exif segments, one behind the other
	dpi  bool   // JFIF gives a resolution
}

// open walks to the first scan. A marker is 0xff and a code; there may be other
// bytes before it and more of 0xff within.
func (j *jpegReader) open() bool {
	for {
		at := bytes.IndexByte(j.data[j.pos:], 0xff)
		if at < 0 {
			return false
		}
		j.pos += at + 1
		for j.pos < len(j.data) && j.data[j.pos] == 0xff {
			j.pos++
		}
		if j.pos == len(j.data) {
			return false
		}
		marker := j.data[j.pos]
		j.pos++
		switch {
		case marker == 0: // no marker, but a stuffed 0xff
			continue
		case marker < 0xc0 || marker == 0xff:
			return false
		case marker == 0xc8 || marker >= 0xd0 && marker <= 0xd9 || marker >= 0xf0 && marker <= 0xfd:
			continue // they have no segment
		}
		segment, ok := j.segment()
		if !ok || !j.read(marker, segment) {
			return false
		}
		if marker == 0xda {
			return j.dpi || readableResolution(j.exif)
		}
	}
}

func (j *jpegReader) segment() ([]byte, bool) {
	if len(j.data)-j.pos < 2 {
		return nil, false
	}
	n := int(binary.BigEndian.Uint16(j.data[j.pos:])) - 2
	j.pos += 2
	if n > len(j.data)-j.pos {
		return nil, false
	}
	start := j.pos
	j.pos += max(n, 0)
	return j.data[start:j.pos], true
}

func (j *jpegReader) read(marker byte, s []byte) bool {
	switch {
	case marker == 0xdb:
		return quantisation(s)
	case marker == 0xc4 || marker == 0xcc: // tables, left to libjpeg
		return true
	case marker >= 0xc0 && marker <= 0xcf || marker == 0xde:
		j.lossless = marker == 0xc3
		return j.frame(s)
	case marker >= 0xe0 && marker <= 0xef:
		return j.application(marker, s)
	}
	return true
}

func quantisation(s []byte) bool {
	for len(s) > 0 {
		n := 1 + 64
		if s[0]>>4 != 0 {
			n = 1 + 2*64
		}
		if len(s) < n {
			return false
		}
		s = s[n:]
	}
	return true
}

// frame reads a start of frame: precision, height, width, number of components
// and three bytes for each.
func (j *jpegReader) frame(s []byte) bool {
	if len(s) < 6 || s[0] != 8 || len(s)%3 != 0 {
		return false
	}
	j.sized = true
	j.height, j.width = int(binary.BigEndian.Uint16(s[1:])), int(binary.BigEndian.Uint16(s[3:]))
	j.components = int(s[5])
	if j.components != 1 && j.components != 3 && j.components != 4 {
		return false
	}
	// The first fragment says how many there are.
	if j.icc != nil && len(j.icc) < 14 {
		return false
	}
	j.icc = nil
	return true
}

// application reads what Pillow reads of the application segments, as far as
// it can fail.
func (j *jpegReader) application(marker byte, s []byte) bool {
	has := func(prefix string) bool { return strings.HasPrefix(string(s[:min(len(s), len(prefix))]), prefix) }
	switch {
	case marker == 0xe0 && has("JFIF"):
		if len(s) < 7 {
			return false
		}
		if len(s) >= 12 && (s[7] == 1 || s[7] == 2) {
			j.dpi = true
		}
	case marker == 0xe1 && has("Exif\x00\x00"):
		if j.exif == nil {
			j.exif = slices.Clip(s) // to be appended to elsewhere
		} else {
			j.exif = append(j.exif, s[6:]...)
		}
	case marker == 0xe2 && has("ICC_PROFILE\x00"):
		if j.icc == nil || bytes.Compare(s, j.icc) < 0 {
			j.icc = s
		}
	case marker == 0xed && has("Photoshop 3.0\x00"):
		return photoshop(s)
	case marker == 0xee && has("Adobe"):
		return len(s) >= 7
	}
	return true
}

// photoshop reads the list of resources in s. A list that breaks off does no
// harm unless it does so where the length of a resource's name belongs.
func photoshop(s []byte) bool {
	at := 14
	for at+6 <= len(s) && string(s[at:at+4]) == "8BIM" {
		code := binary.BigEndian.Uint16(s[at+4:])
		at += 6
		if at >= len(s) {
			return false
		}
		at += 1 + int(s[at])
		at += at & 1
		if at+4 > len(s) {
			return true
		}
		size := int(binary.BigEndian.Uint32(s[at:]))
		at += 4
		if code == 0x3ed && min(size, len(s)-at) < 14 { // a resolution of too few bytes
			return true
		}
		at += size
		at += at & 1
	}
	return true
}
