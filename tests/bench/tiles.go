package main

import (
	"bytes"
	"image"
	"image/draw"
	"image/png"
	"strconv"

	"histogate/tests/stack"
)

const (
	tileSide  = 224
	tileCount = 64
)

// tiles are 64 different requests' tiles of real tissue: windows of the committed ones,
// which are laid side by side, each shifted by a few pixels, as PNG.
func tiles() ([][]byte, error) {
	paths := stack.TilePaths()
	strip := image.NewRGBA(image.Rect(0, 0, 2*tileSide, tileSide))
	all := make([][]byte, tileCount)
	for i := range all {
		for j := range 2 {
			tile, err := png.Decode(bytes.NewReader(stack.ReadTile(paths[(i+j)%len(paths)])))
			if err != nil {
				return nil, err
			}
			draw.Draw(strip, tile.Bounds().Add(image.Pt(j*tileSide, 0)), tile, image.Point{}, draw.Src)
		}
		shift := i / len(paths) * (tileSide / (tileCount / len(paths)))
		window := image.NewNRGBA(image.Rect(0, 0, tileSide, tileSide))
		draw.Draw(window, window.Bounds(), strip, image.Pt(shift, 0), draw.Src)
		var buf bytes.Buffer
		if err := png.Encode(&buf, window); err != nil {
			return nil, err
		}
		all[i] = buf.Bytes()
	}
	return all, nil
}

// embeddings are requests for the embedding of each tile by h1.
func embeddings(tiles [][]byte) [][]byte {
	all := make([][]byte, len(tiles))
	for i, tile := range tiles {
		all[i] = request("/invocations", stack.Tile{
			ImageData: tile, SlideName: "slide-" + strconv.Itoa(i%4), Width: tileSide, Height: tileSide,
			PatchIdx: i, ModelName: "h1", Mode: "embedding",
		}.Body())
	}
	return all
}

// forMOptimus are requests for m-optimus's prediction, each with the same bulk RNA.
func forMOptimus(rna []float64) ([][]byte, error) {
	pictures, err := tiles()
	if err != nil {
		return nil, err
	}
	all := make([][]byte, len(pictures))
	for i, tile := range pictures {
		all[i] = request("/invocations", stack.Tile{
			ImageData: tile, SlideName: "slide-" + strconv.Itoa(i%4), Width: tileSide, Height: tileSide,
			PatchIdx: i, ModelName: "m-optimus", Mode: "prediction", BulkRNA: rna,
		}.Body())
	}
	return all, nil
}
