package raster

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
)

// Tags of a TIFF that say how its pixels are stored, and those that the
// reference looks at besides.
const (
	tagWidth           = 256
	tagHeight          = 257
	tagBits            = 258
	tagCompression     = 259
	tagPhotometric     = 262
	tagFillOrder       = 266
	tagStripOffsets    = 273
	tagOrientation     = 274
	tagSamples         = 277
	tagRowsPerStrip    = 278
	tagStripByteCounts = 279
	tagMinSample       = 280
	tagMaxSample       = 281
	tagXResolution     = 282
	tagYResolution     = 283
	tagPlanar          = 284
	tagResolutionUnit  = 296
	tagPredictor       = 317
	tagColorMap        = 320
	tagTileWidth       = 322
	tagTileHeight      = 323
	tagTileOffsets     = 324
	tagTileByteCounts  = 325
	tagExtraSamples    = 338
	tagSampleFormat    = 339
	tagXMP             = 700
	tagEXIF            = 34665
	tagGPS             = 34853
)

// Types of a tag's values.
const (
	typeByte      = 1
	typeShort     = 3
	typeLong      = 4
	typeRational  = 5
	typeUndefined = 7
	typeIFD       = 13
	typeLong8     = 16
)

// tiffTypeSize gives the bytes that a value of a type takes, 0 for a type that
// is not known.
var tiffTypeSize = [...]uint64{1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}

// refusedTags are those that one of the reference's two readers of a directory
// fails on, or may, and that files of the kinds taken do not have: subfile of
// old, transfer function, extremes of samples, data type of old, interoperability, Windows Media Photo.
var refusedTags = [...]uint16{255, 301, 340, 341, 32996, 40965, 48129}

// maxTags bounds the directory. Files of scanners have up to about 60 tags.
const maxTags = 256

type tiffTag struct {
	kind  uint16
	count uint64
	value []byte // count values, inside the file
}

// tiffDir is the first directory of a TIFF.
type tiffDir struct {
	order binary.ByteOrder
	tags  map[uint16]tiffTag
	err   *Error // the first tag that was asked for and is malformed
}

func isTIFF(data []byte) bool {
	if len(data) < 4 {
		return false
	}
	switch string(data[:4]) {
	case "II*\x00", "MM\x00*", "II+\x00", "MM\x00+":
		return true
	}
	return false
}

// readTIFFDir reads the first directory of a classic TIFF or, little-endian, a
// BigTIFF. It is stricter than TIFF readers are: a tag given twice, out of order, of
// an unknown type or with values outside the file makes them drop tags and guess.
func readTIFFDir(data []byte) (*tiffDir, *Error) {
	short := refuse(Damaged, TIFF, "the TIFF is truncated in its directory")
	d := &tiffDir{order: binary.LittleEndian, tags: make(map[uint16]tiffTag)}
	if data[0] == 'M' {
		d.order = binary.BigEndian
	}
	if len(data) < 16 {
		return nil, short
	}
	at, countSize, entrySize, inline := uint64(d.order.Uint32(data[4:])), uint64(2), uint64(12), uint64(4)
	if big := d.order.Uint16(data[2:]) == 43; big {
		if data[0] == 'M' {
			return nil, refuse(Unsupported, TIFF, "a big-endian BigTIFF is not taken; save it as a classic TIFF")
		}
		if d.order.Uint32(data[4:]) != 8 {
			return nil, refuse(Damaged, TIFF, "the header of the BigTIFF is damaged")
		}
		at, countSize, entrySize, inline = d.order.Uint64(data[8:]), 8, 20, 8
	}
	size := uint64(len(data))
	if at > size || size-at < countSize {
		return nil, short
	}
	count := uint64(d.order.Uint16(data[at:]))
	if countSize == 8 {
		count = d.order.Uint64(data[at:])
	}
	at += countSize
	if count > maxTags {
		return nil, refuse(Unsupported, TIFF, "a TIFF with %d tags is not taken; at most %d are", count, maxTags)
	}
	if size-at < count*entrySize+inline { // inline: the next directory's place
		return nil, short
	}
	total, last := uint64(0), -1
	for i := range count {
		entry := data[at+i*entrySize:][:entrySize]
		tag, kind := d.order.Uint16(entry), d.order.Uint16(entry[2:])
		n := uint64(d.order.Uint32(entry[4:]))
		if inline == 8 {
			n = d.order.Uint64(entry[4:])
		}
		if int(kind) >= len(tiffTypeSize) || tiffTypeSize[kind] == 0 || n == 0 {
			return nil, refuse(Damaged, TIFF, "tag %d of the TIFF has no value of a known type", tag)
		}
		if int(tag) <= last {
			return nil, refuse(Damaged, TIFF, "tag %d of the TIFF is given twice or out of order", tag)
		}
		last = int(tag)
		over, length := bits.Mul64(n, tiffTypeSize[kind])
		value := entry[entrySize-inline:]
		if over != 0 || length > inline {
			from := uint64(d.order.Uint32(value))
			if inline == 8 {
				from = d.order.Uint64(value)
			}
			if over != 0 || from > size || length > size-from {
				return nil, refuse(Damaged, TIFF, "the values of the TIFF's tag %d are not in the file", tag)
			}
			value = data[from:]
			// Tags may share bytes, but the reference drops some then.
			if total += length; total > size {
				return nil, refuse(Damaged, TIFF, "the tags of the TIFF are larger than the file")
			}
		}
		d.tags[tag] = tiffTag{kind, n, value[:length]}
	}
	return d, nil
}

func (d *tiffDir) malformed(tag uint16) {
	if d.err == nil {
		d.err = refuse(Damaged, TIFF, "tag %d of the TIFF is missing or malformed", tag)
	}
}

// numbers gives the unsigned values of a tag, nil where there is no such tag.
func (d *tiffDir) numbers(tag uint16) []uint64 {
	t, found := d.tags[tag]
	if !found {
		return nil
	}
	values := make([]uint64, t.count)
	for i := range values {
		switch t.kind {
		case typeShort:
			values[i] = uint64(d.order.Uint16(t.value[2*i:]))
		case typeLong:
			values[i] = uint64(d.order.Uint32(t.value[4*i:]))
		case typeLong8:
			values[i] = d.order.Uint64(t.value[8*i:])
		default:
			d.malformed(tag)
			return nil
		}
	}
	return values
}

// short gives the one 16-bit value of a tag, or what stands for it when it is missing.
func (d *tiffDir) short(tag uint16, missing int) int {
	t, found := d.tags[tag]
	switch {
	case !found:
		return missing
	case t.kind != typeShort || t.count != 1:
		d.malformed(tag)
		return missing
	}
	return int(d.order.Uint16(t.value))
}

// length gives the one positive value of a tag, of 16 or 32 bits; missing must
// not be 0 where the tag may be absent.
func (d *tiffDir) length(tag uint16, missing int) int {
	t, found := d.tags[tag]
	switch {
	case !found && missing != 0:
		return missing
	case found && t.count == 1 && (t.kind == typeShort || t.kind == typeLong):
		if v := int(d.numbers(tag)[0]); v > 0 {
			return v
		}
	}
	d.malformed(tag)
	return 1
}

// perSample checks that a tag, where it is there, has one and the same 16-bit
// value for every sample, and gives it.
func (d *tiffDir) perSample(tag uint16, samples, missing int) int {
	t, found := d.tags[tag]
	if !found {
		return missing
	}
	if t.kind != typeShort || t.count != uint64(samples) {
		d.malformed(tag)
		return missing
	}
	values := d.numbers(tag)
	for _, v := range values {
		if v != values[0] {
			d.malformed(tag)
		}
	}
	return int(values[0])
}

// checkOthers looks at tags that have nothing to do with the pixels, but which
// the reference reads and fails on when they are not what they should be.
func (d *tiffDir) checkOthers(samples int) *Error {
	for _, rule := range [...]struct {
		tag   uint16
		count int // 0 for any
		kinds []uint16
	}{
		{tagMinSample, samples, []uint16{typeShort}},
		{tagMaxSample, samples, []uint16{typeShort}},
		{tagXResolution, 1, []uint16{typeRational}},
		{tagYResolution, 1, []uint16{typeRational}},
		{tagResolutionUnit, 1, []uint16{typeShort}},
		{tagXMP, 0, []uint16{typeByte, typeUndefined}},
		{tagEXIF, 1, []uint16{typeLong, typeIFD}},
		{tagGPS, 1, []uint16{typeLong, typeIFD}},
	} {
		t, found := d.tags[rule.tag]
		if found && (!slices.Contains(rule.kinds, t.kind) || rule.count != 0 && t.count != uint64(rule.count)) {
			d.malformed(rule.tag)
		}
	}
	for _, tag := range refusedTags {
		if _, found := d.tags[tag]; found {
			return refuse(Unsupported, TIFF, "a TIFF with tag %d is not taken", tag)
		}
	}
	return d.err
}

// turnedByXMP tells whether the orientation may be in the XMP data, where the
// reference looks for it when there is no tag.
func (d *tiffDir) turnedByXMP() bool {
	_, oriented := d.tags[tagOrientation]
	return !oriented && bytes.Contains(d.tags[tagXMP].value, []byte("tiff:Orientation"))
}
