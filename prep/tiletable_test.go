package prep

import (
	"bytes"
	"testing"
)

// A tile that goes as bytes has, looked up in its table, the bits of one that goes as
// floats: in both types, for real tiles, and where nothing was sent those of black.
func TestTileOfBytesLookedUpIsTheTileOfFloats(t *testing.T) {
	for _, dtype := range []DType{Float32, Float16} {
		floats, bytesSpec := testSpec(), testSpec()
		floats.Inputs[0].DType, bytesSpec.Inputs[0].DType = dtype, dtype
		bytesSpec.TileTransport = UInt8Transport
		table, size := bytesSpec.TileTable(), dtype.Size()
		if len(table) != 3*256*size || !bytes.Equal(table, floats.TileTable()) {
			t.Fatalf("%s: a table of %d bytes, or one that depends on the transport", dtype, len(table))
		}
		if sent, n := bytesSpec.Sent(0), bytesSpec.SentBytes(0); sent != UInt8 || n != 3*224*224 || floats.Sent(0) != dtype || floats.SentBytes(0) != n*size {
			t.Errorf("%s: sent as %s in %d bytes", dtype, sent, n)
		}
		lookUp := func(samples []byte) (values []byte) {
			for i, v := range samples {
				at := (256*(i/(len(samples)/3)) + int(v)) * size
				values = append(values, table[at:at+size]...)
			}
			return values
		}
		p, q := NewPreparer(floats), NewPreparer(bytesSpec)
		for i, file := range tileFiles(t) {
			body := tileBody(readTile(t, file), "S1", i)
			want, err := p.Prepare(parse(t, body))
			if err != nil {
				t.Fatal(err)
			}
			got, err := q.Prepare(parse(t, body))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(lookUp(tensorOf(got, 0)), tensorOf(want, 0)) {
				t.Errorf("%s as %s has other values as bytes", file, dtype)
			}
			want.Release()
			got.Release()
		}
		blank := bytes.Repeat([]byte{poison}, bytesSpec.SentBytes(0))
		if bytesSpec.Inputs[0].WriteBlank(blank); !bytes.Equal(blank, make([]byte, 3*224*224)) {
			t.Errorf("%s: what is sent for nothing is not black", dtype)
		}
	}
}
