package raster

// #include "webp.h"
import "C"

import (
	"encoding/binary"
	"unsafe"
)

func isWebP(data []byte) bool {
	if len(data) < 16 || string(data[:4]) != "RIFF" || string(data[8:12]) != "WEBP" {
		return false
	}
	switch string(data[12:16]) {
	case "VP8 ", "VP8L", "VP8X":
		return true
	}
	return false
}

func decodeWebP(data []byte, width, height int, rgb []byte) error {
	w, h, ok := webpSize(data)
	if !ok {
		return damaged(WebP)
	}
	if w != width || h != height {
		return wrongSize(WebP, w, h, width, height)
	}
	// libwebp keeps a record of every chunk before it tells their number.
	if chunks, frames := webpParts(data); chunks > maxParts || frames > maxFrames {
		return tooManyFrames()
	}
	return refused(WebP, C.hg_webp_read((*C.uint8_t)(unsafe.SliceData(data)), C.size_t(len(data)), C.size_t(width), C.size_t(height),
		maxFrames, (*C.uint8_t)(unsafe.SliceData(rgb))))
}

// webpSize reads the size of the canvas from the first chunk, which is lossy,
// lossless or extended.
func webpSize(data []byte) (width, height int, ok bool) {
	if len(data) < 25 {
		return 0, 0, false
	}
	kind, b := string(data[12:16]), data[20:]
	switch {
	case kind == "VP8L" && b[0] == 0x2f:
		bits := binary.LittleEndian.Uint32(b[1:])
		return int(bits&0x3fff) + 1, int(bits>>14&0x3fff) + 1, true
	case kind == "VP8 " && len(b) >= 10 && string(b[3:6]) == "\x9d\x01\x2a":
		return int(binary.LittleEndian.Uint16(b[6:]) & 0x3fff), int(binary.LittleEndian.Uint16(b[8:]) & 0x3fff), true
	case kind == "VP8X" && len(b) >= 10:
		return uint24(b[4:]) + 1, uint24(b[7:]) + 1, true
	}
	return 0, 0, false
}

// webpParts counts the chunks and those of them that are an animation's frames,
// not far beyond what is taken.
func webpParts(data []byte) (chunks, frames int) {
	if end := 8 + int(binary.LittleEndian.Uint32(data[4:])); end < len(data) {
		data = data[:end] // what is behind is no part of it
	}
	for at := 12; len(data)-at >= 8 && chunks <= maxParts; chunks++ {
		if string(data[at:at+4]) == "ANMF" {
			frames++
		}
		n := int(binary.LittleEndian.Uint32(data[at+4:]))
		at += 8 + n + n&1
	}
	return chunks, frames
}

func uint24(b []byte) int {
	return int(b[0]) | int(b[1])<<8 | int(b[2])<<16
}
