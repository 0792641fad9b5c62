// Package raster decodes an encoded tile into 8-bit RGB samples, exactly as
// Pillow's Image.open(f).convert("RGB") does, or refuses it. It never yields
// other pixels than Pillow's and never a picture where Pillow refuses. Two things
// are otherwise on purpose: a PNG whose only fault is an ancillary chunk that
// inflates to more than Pillow takes is read, since such chunks are never
// inflated; and 16-bit grey, which Pillow clips to white, is refused.
//
// A tile has a known size: it is read from the file's header, and a file of
// another size is refused before a pixel is decoded or memory is allocated.
package raster

import (
	"fmt"
	"slices"
	"strings"
)

// Format is an encoding of images that this package knows by its first bytes.
type Format string

// The formats that can be read.
const (
	PNG  Format = "PNG"
	JPEG Format = "JPEG"
	WebP Format = "WebP"
	TIFF Format = "TIFF"
	GIF  Format = "GIF"
	BMP  Format = "BMP"
)

// Kind says why a file was refused.
type Kind int

const (
	// UnknownFormat: the bytes are not an image of a format that is allowed; the
	// Format of the error is set if it is one that this package reads.
	UnknownFormat Kind = iota
	// WrongSize: the header declares another size than the one wanted.
	WrongSize
	// Damaged: the file is truncated or its data contradict themselves.
	Damaged
	// Unsupported: a valid file of a kind that is refused on purpose.
	Unsupported
)

// Error is the only error type that this package returns.
type Error struct {
	Kind   Kind
	Format Format
	// Detail is a sentence for the sender of the file. It holds nothing of the
	// file's content beyond numbers read from its header.
	Detail string
}

func (e *Error) Error() string { return e.Detail }

func refuse(kind Kind, format Format, message string, args ...any) *Error {
	return &Error{Kind: kind, Format: format, Detail: fmt.Sprintf(message, args...)}
}

func wrongSize(format Format, width, height, wantWidth, wantHeight int) *Error {
	return refuse(WrongSize, format, "the %s is %dx%d pixels; the model takes %dx%d and nothing is resized",
		format, width, height, wantWidth, wantHeight)
}

// decoders lists what Decode can read. The order is the one in which formats
// are named to a caller.
var decoders = []struct {
	format  Format
	matches func(data []byte) bool
	decode  func(data []byte, width, height int, rgb []byte) error
}{
	{PNG, isPNG, decodePNG},
	{JPEG, isJPEG, decodeJPEG},
	{WebP, isWebP, decodeWebP},
	{TIFF, isTIFF, decodeTIFF},
	{GIF, isGIF, decodeGIF},
	{BMP, isBMP, decodeBMP},
}

// Formats lists the formats that Decode can read.
func Formats() []Format {
	formats := make([]Format, len(decoders))
	for i, d := range decoders {
		formats[i] = d.format
	}
	return formats
}

// Decode writes the picture in data, which must be of the size width x height,
// to rgb: its samples row by row, three bytes a pixel. When it fails rgb may hold
// a part of a picture. Only formats listed in allowed are read; they are told apart
// by their first bytes, never by a name. Decode panics if the size is not positive
// or rgb has the wrong length: those are the caller's mistakes, not the file's.
// Every other failure is an [*Error].
func Decode(data []byte, width, height int, allowed []Format, rgb []byte) error {
	if want := 3 * width * height; width < 1 || height < 1 || len(rgb) != want {
		panic(fmt.Sprintf("raster: destination of %d bytes for a tile of %dx%d, %d bytes", len(rgb), width, height, want))
	}
	for _, d := range decoders {
		if !d.matches(data) {
			continue
		}
		if !slices.Contains(allowed, d.format) {
			return refuse(UnknownFormat, d.format, "a %s is not taken here; what is taken: %s", d.format, list(allowed))
		}
		return d.decode(data, width, height, rgb)
	}
	return refuse(UnknownFormat, "", "not an image in a format that is taken (%s)", list(allowed))
}

func list(formats []Format) string {
	names := make([]string, len(formats))
	for i, f := range formats {
		names[i] = string(f)
	}
	return strings.Join(names, ", ")
}
