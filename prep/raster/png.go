package raster

import (
	"bytes"
	"image/png"
	"strings"
)

const pngSignature = "\x89PNG\r\n\x1a\n"

func isPNG(data []byte) bool {
	return strings.HasPrefix(string(data[:min(len(data), 8)]), pngSignature)
}

func decodePNG(data []byte, width, height int, t Target) error {
	header, err := png.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return refuse(Damaged, PNG, "the PNG header cannot be read")
	}
	if header.Width != width || header.Height != height {
		return wrongSize(PNG, header.Width, header.Height, width, height)
	}
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return refuse(Damaged, PNG, "the PNG is truncated or damaged")
	}
	rgb := make([]byte, 3*width)
	for y := range height {
		for x := range width {
			r, g, b, _ := img.At(x, y).RGBA()
			rgb[3*x], rgb[3*x+1], rgb[3*x+2] = byte(r>>8), byte(g>>8), byte(b>>8)
		}
		t.put(y, width, height, rgb)
	}
	return nil
}
