package stack

import (
	"bytes"
	"image"
	"image/draw"
	"image/png"
)

// Mosaic is a picture of tissue and glass of any size, as a PNG: the four committed
// tiles, two by two, with 16 pixels of glass before and 32 between them. A shift
// moves the tiles up and to the left.
func Mosaic(width, height, shift int) []byte {
	const first, step, glass, opaque = 16, 256, 245, 255
	picture := image.NewRGBA(image.Rect(0, 0, width, height))
	for i := range picture.Pix {
		picture.Pix[i] = glass
		if i%4 == 3 {
			picture.Pix[i] = opaque
		}
	}
	for i, path := range TilePaths() {
		tile, err := png.Decode(bytes.NewReader(ReadTile(path)))
		if err != nil {
			panic(err) // it is committed
		}
		at := image.Pt(first+step*(i%2)-shift, first+step*(i/2)-shift)
		draw.Draw(picture, tile.Bounds().Add(at), tile, image.Point{}, draw.Src)
	}
	var buf bytes.Buffer
	if err := png.Encode(&buf, picture); err != nil {
		panic(err) // it has a size, and memory takes it
	}
	return buf.Bytes()
}
