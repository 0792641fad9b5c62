package repository

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"

	"histogate/prep"
	"histogate/tritonclient/kserve"
)

// The parameters that tell the backend what the samples of a tile that goes as bytes
// are to the model: the table, in base64, the type of its values, and the SHA-256 of
// the table, by which the backend knows that it has it whole.
const (
	tileTable     = "tile_table"
	tileTableType = "tile_table_dtype"
	tileTableHash = "tile_table_sha256"
)

// tileParameters are the parameters for a spec's tile; none where it goes as floats.
func tileParameters(spec *prep.Spec) map[string]*kserve.ModelParameter {
	parameters := map[string]*kserve.ModelParameter{}
	for i, in := range spec.Inputs {
		if spec.Sent(i) == prep.UInt8 {
			table := spec.TileTable()
			hash := sha256.Sum256(table)
			parameters[tileTable] = &kserve.ModelParameter{StringValue: base64.StdEncoding.EncodeToString(table)}
			parameters[tileTableType] = &kserve.ModelParameter{StringValue: string(in.DType)}
			parameters[tileTableHash] = &kserve.ModelParameter{StringValue: hex.EncodeToString(hash[:])}
		}
	}
	return parameters
}

// setTile makes a configuration say what a spec does of the tile's way to Triton.
func setTile(c *kserve.ModelConfig, spec *prep.Spec) {
	for i, in := range spec.Inputs {
		for _, other := range c.Input {
			if in.Source == prep.TileSource && other.Name == in.Name {
				other.DataType = DataType(spec.Sent(i))
			}
		}
	}
	parameters := tileParameters(spec)
	for key, p := range c.Parameters {
		if !slices.Contains([]string{tileTable, tileTableType, tileTableHash}, key) {
			parameters[key] = p
		}
	}
	c.Parameters = parameters
}

// CheckTileTable holds the table of a configuration against what a spec says of the
// tile. Its error says how to make them agree.
func CheckTileTable(spec *prep.Spec, c *kserve.ModelConfig) error {
	const remedy = "make the configuration anew with gateway repository build or, for a model that is no .pt2, gateway repository convert"
	want := tileParameters(spec)
	for _, key := range []string{tileTableHash, tileTableType, tileTable} {
		here, there := want[key].GetStringValue(), c.Parameters[key].GetStringValue()
		switch {
		case here == there:
		case here == "":
			return fmt.Errorf("it has a table for a tile that goes as bytes, and by spec.yaml the tile goes as floats; %s, or set tile_transport: %s", remedy, prep.UInt8Transport)
		case there == "":
			return fmt.Errorf("the parameter %s is missing: by spec.yaml the tile goes as bytes; %s", key, remedy)
		case key == tileTable:
			return fmt.Errorf("the parameter %s is not the table that its %s is of; %s", key, tileTableHash, remedy)
		default:
			return fmt.Errorf("the parameter %s is %s, and what spec.yaml says of the tile gives %s; %s", key, clip(there), here, remedy)
		}
	}
	return nil
}
