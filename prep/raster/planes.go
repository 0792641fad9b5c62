package raster

// #include "planes.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// WritePlanes writes the samples of a tile, which are in the order that Decode gives
// them in, to dst as they are, a plane for each channel: 3 x H x W. It panics unless dst
// has room for just those.
func WritePlanes(dst, rgb []byte) {
	if len(rgb) == 0 || len(rgb)%3 != 0 || len(dst) != len(rgb) {
		panic(fmt.Sprintf("raster: destination of %d bytes for %d samples", len(dst), len(rgb)))
	}
	C.hg_planes((*C.uint8_t)(unsafe.SliceData(rgb)), C.size_t(len(rgb)/3), (*C.uint8_t)(unsafe.SliceData(dst)))
}
