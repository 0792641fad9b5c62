package prep

import "histogate/prep/raster"

// TileTable is what the model is given for each of the 256 samples that a pixel can
// have, for red, then green, then blue: 3 x 256 values of the tile input's type,
// little-endian. They are the very bits that [Sample.Write] writes where the tile goes
// as floats.
func (s *Spec) TileTable() []byte {
	const samples = 256
	rgb := make([]byte, 3*samples)
	for i := range rgb {
		rgb[i] = byte(i / 3)
	}
	layout := layout(s.Inputs[s.inputOf(TileSource)].DType)
	table := make([]byte, len(rgb)*layout.Size())
	newTable(&s.Tile).Write(table, layout, rgb)
	return table
}

func newTable(tile *Tile) *raster.Table {
	// As a tensor library does with a list of Python floats: the decimal is
	// rounded to float64, then to float32.
	var mean, std [3]float32
	for c := range 3 {
		mean[c], std[c] = float32(tile.Mean[c]), float32(tile.Std[c])
	}
	return raster.NewTable(mean, std)
}

// layout is that of a tile's values.
func layout(t DType) raster.Layout {
	if t == Float16 {
		return raster.Float16
	}
	return raster.Float32
}
