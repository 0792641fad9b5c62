package raster

// #cgo CFLAGS: -std=c11 -O3 -Wall -Wextra -Wno-unused-parameter
// #cgo pkg-config: libdeflate zlib libjpeg libwebp libwebpdemux
// #include "sink.h"
// #include "status.h"
import "C"

// The C decoders get the file and the destination as arguments of one call for an
// image and keep neither: both stay Go's.

// How much of a file is read. What writers make is far below: some ten scans,
// hundreds of frames, chunks of several KB; what is above is made to cost time.
const (
	maxParts  = 10_000 // chunks with the data of a PNG's picture, and all of a WebP
	maxScans  = 100    // of a JPEG
	maxFrames = 1_000  // of an animated WebP, although only the first is decoded
)

// refused turns what a C decoder answered into an error; nil if it decoded.
func refused(format Format, status C.int) error {
	switch status {
	case C.HG_OK:
		return nil
	case C.HG_TOO_MUCH:
		if format == WebP {
			return tooManyFrames()
		}
		return refuse(Unsupported, format, "the JPEG has more than %d scans; send a baseline JPEG", maxScans)
	case C.HG_MEMORY:
		return refuse(Damaged, format, "there is no memory to decode the %s; send a smaller image", format)
	default:
		return damaged(format)
	}
}

func tooManyFrames() error {
	return refuse(Unsupported, WebP, "the WebP has more than %d frames or %d chunks; send a still image", maxFrames, maxParts)
}

func damaged(format Format) error {
	return refuse(Damaged, format, "the %s is truncated or damaged; encode and send it again", format)
}
