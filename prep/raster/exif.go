package raster

import (
	"bytes"
	"encoding/binary"
)

// readableResolution is false for Exif data in which Pillow, which looks for a
// resolution in it when it opens a JPEG, stumbles over a text or a byte string
// of one character too few: it takes the value for a fraction. All other damage
// to Exif data is none to the picture.
func readableResolution(exif []byte) bool {
	for range 2 {
		exif = bytes.TrimPrefix(exif, []byte("Exif\x00\x00"))
	}
	if len(exif) < 8 {
		return true
	}
	var order binary.ByteOrder
	switch string(exif[:4]) {
	case "MM\x00\x2a", "MM\x2a\x00", "MM\x00\x2b": // the last is BigTIFF, but read as TIFF
		order = binary.BigEndian
	case "II\x2a\x00", "II\x00\x2a":
		order = binary.LittleEndian
	default: // not TIFF, or BigTIFF, whose header is longer than what is read of it
		return true
	}
	values := directory(exif, order)
	resolution, ok := values[tagXResolution]
	if _, unit := values[tagResolutionUnit]; !unit || !ok {
		return true
	}
	switch resolution.kind {
	case 1, 7: // bytes
		return len(resolution.data) != 1
	case 2: // text, with a zero byte at its end that does not count
		text := bytes.TrimSuffix(resolution.data, []byte{0})
		return len(text) > 1 || len(text) == 1 && (text[0] < '0' || text[0] > '9')
	}
	return true
}

type exifValue struct {
	kind uint16
	data []byte
}

// directory reads the two tags from the first directory of a TIFF file, by the
// rules by which Pillow drops a broken one.
func directory(file []byte, order binary.ByteOrder) map[uint16]exifValue {
	values := make(map[uint16]exifValue)
	at := int(order.Uint32(file[4:]))
	if at > len(file)-2 {
		return values
	}
	count, total := int(order.Uint16(file[at:])), 0
	at += 2
	seen := make(map[uint16]bool)
	for ; count > 0 && at+12 <= len(file); count, at = count-1, at+12 {
		entry := file[at : at+12]
		tag, kind, n := order.Uint16(entry), order.Uint16(entry[2:]), int(order.Uint32(entry[4:]))
		size := n * exifUnit(kind)
		if seen[tag] || size == 0 {
			continue
		}
		data := entry[8:]
		if size > 4 {
			start := int(order.Uint32(data))
			total += size
			if total > len(file) {
				continue
			}
			if start > len(file) || size > len(file)-start {
				return values // the rest is not read
			}
			data = file[start:]
		}
		seen[tag] = true
		if tag == tagXResolution || tag == tagResolutionUnit {
			values[tag] = exifValue{kind, data[:size]}
		}
	}
	return values
}

// exifUnit is the size of one value of a type, 0 for a type that is ignored.
func exifUnit(kind uint16) int {
	switch kind {
	case 1, 2, 6, 7:
		return 1
	case 3, 8:
		return 2
	case 4, 9, 11, 13:
		return 4
	case 5, 10, 12, 16:
		return 8
	}
	return 0
}
