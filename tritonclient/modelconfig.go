package tritonclient

import (
	"fmt"
	"os"

	"google.golang.org/protobuf/encoding/prototext"

	"histogate/tritonclient/kserve"
)

// ReadModelConfig reads a config.pbtxt. A field that the protocol does not have
// is an error that names the file and the line.
func ReadModelConfig(path string) (*kserve.ModelConfig, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // a FIFO could be read for ever
		return nil, fmt.Errorf("%s: not a regular file; put one in its place", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	config := new(kserve.ModelConfig)
	if err := prototext.Unmarshal(text, config); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return config, nil
}
