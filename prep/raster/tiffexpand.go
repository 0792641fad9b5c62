package raster

// expand replaces the chunks, compressed by LZW or PackBits, by their bytes.
func (m *tiffImage) expand() *Error {
	decompress := unLZW
	if m.compression == tiffPackBits {
		decompress = unPackBits
	}
	chunks := make([][]byte, len(m.chunks))
	for i, chunk := range m.chunks {
		chunks[i] = make([]byte, m.rowBytes()*m.rows(i))
		if !decompress(chunks[i], chunk) {
			return refuse(Damaged, TIFF, "the TIFF is truncated or damaged in its compressed data")
		}
	}
	m.chunks = chunks
	return nil
}

// LZW as in section 13 of the TIFF specification, revision 6.0: codes of 9 to 12 bits,
// the highest bit first, wider one code early.
const (
	lzwClear    = 256
	lzwEnd      = 257
	lzwFirst    = 258 // the first code of a string of its own
	lzwLeast    = 9
	lzwMostBits = 12
	lzwCodes    = 1 << lzwMostBits
	// A stream may go on for so long without a clear code that strings have no codes any
	// more. How long is libtiff's bound.
	lzwStrings = lzwCodes - 1 + 1024
)

// unLZW fills dst and tells whether src had enough for it. What follows beyond dst does
// not count.
func unLZW(dst, src []byte) bool {
	// A string is what one code wrote and the next byte: both are in dst already.
	var begin, size [lzwCodes]int
	bits, width, pos := uint32(0), 0, 0 // what is read of src ahead
	wide, next, last := lzwLeast, lzwFirst, -1
	lastBegin, lastSize := 0, 0
	for n := 0; n < len(dst); {
		for width < wide {
			if pos == len(src) {
				return false
			}
			bits, width, pos = bits<<8|uint32(src[pos]), width+8, pos+1
		}
		width -= wide
		code := int(bits >> width & (1<<wide - 1))
		switch {
		case code == lzwEnd:
			return false
		case code == lzwClear:
			wide, next, last = lzwLeast, lzwFirst, -1
			continue
		case last < 0 && code > lzwClear, code > next:
			return false
		}
		if last >= 0 {
			if next < lzwCodes {
				begin[next], size[next] = lastBegin, lastSize+1
			}
			if next++; next > lzwStrings {
				return false
			}
			if next >= 1<<wide-1 && wide < lzwMostBits {
				wide++
			}
		}
		last, lastBegin, lastSize = code, n, 1
		if code < lzwClear {
			dst[n] = byte(code)
			n++
			continue
		}
		lastSize = size[code]
		for i := range min(lastSize, len(dst)-n) { // byte by byte: a string can run into itself
			dst[n+i] = dst[begin[code]+i]
		}
		n += lastSize
	}
	return true
}

// unPackBits fills dst and tells whether src had enough for it: a length and so many
// bytes, or one byte to repeat. What follows beyond dst does not count.
func unPackBits(dst, src []byte) bool {
	for len(dst) > 0 {
		if len(src) == 0 {
			return false
		}
		length := int(int8(src[0]))
		src = src[1:]
		switch {
		case length == -128: // nothing
		case length < 0:
			if len(src) == 0 {
				return false
			}
			n := min(1-length, len(dst))
			for i := range n {
				dst[i] = src[0]
			}
			dst, src = dst[n:], src[1:]
		default:
			n := min(length+1, len(dst))
			if len(src) < length+1 && len(src) < n {
				return false
			}
			copy(dst[:n], src)
			dst, src = dst[n:], src[min(length+1, len(src)):]
		}
	}
	return true
}
