package openapi

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"image"
	"image/png"
	"math"

	"histogate/prep"
)

// Example is a sound request for a model and mode, and its answer. The numbers of the
// answer are made up, and fewer than the model gives.
type Example struct {
	model *prep.Spec
	Mode  prep.Mode
}

type tile struct {
	ImageData   string  `json:"image_data"`
	SlideName   string  `json:"slide_name"`
	X           int     `json:"x"`
	Y           int     `json:"y"`
	Width       int     `json:"width"`
	Height      int     `json:"height"`
	PatchIdx    int     `json:"patch_idx"`
	TissueRatio float64 `json:"tissue_ratio"`
	Resolution  float64 `json:"resolution"`
	ModelName   string  `json:"model_name,omitempty"`
	Mode        string  `json:"mode,omitempty"`
}

// answer has its members in the order in which the gateway writes them.
type answer struct {
	Output      []float32 `json:"output"`
	SlideName   string    `json:"slide_name"`
	X           int       `json:"x"`
	Y           int       `json:"y"`
	Width       int       `json:"width"`
	Height      int       `json:"height"`
	TissueRatio float64   `json:"tissue_ratio"`
	PatchIdx    int       `json:"patch_idx"`
	Resolution  float64   `json:"resolution"`
	Embedding   []float32 `json:"embedding"`
}

// JSON is the request's document, for a route whose path says model and mode.
func (e Example) JSON() any { return e.tile() }

// Named is the request's document with model and mode.
func (e Example) Named() any {
	t := e.tile()
	t.ModelName, t.Mode = e.model.Name, string(e.Mode)
	return t
}

// Broken is a request without an image.
func (e Example) Broken() any {
	t := e.tile()
	t.ImageData, t.PatchIdx = "", t.PatchIdx+1
	return t
}

// Failure is what the broken request is told in its place.
func (e Example) Failure() any {
	return map[string]any{"error": map[string]any{
		"status": 400, "code": prep.InvalidImage, "detail": `image_data: not valid base64: empty; the tile is expected as an encoded image in base64 (slide_name "slide-1", patch_idx 1)`,
	}}
}

func (e Example) tile() tile {
	t := e.model.Tile
	return tile{
		ImageData: base64.StdEncoding.EncodeToString(e.png()), SlideName: "slide-1", X: 0, Y: 0,
		Width: t.Width, Height: t.Height, TissueRatio: 0.75, Resolution: t.MicronsPerPixel,
	}
}

// Image is the image by itself, as a data URI.
func (e Example) Image() string {
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(e.png())
}

// png is a black tile.
func (e Example) png() []byte {
	picture := image.NewGray(image.Rect(0, 0, e.model.Tile.Width, e.model.Tile.Height))
	var buffer bytes.Buffer
	_ = png.Encode(&buffer, picture) // a buffer takes all
	return buffer.Bytes()
}

// Answer is the answer's document.
func (e Example) Answer() any {
	t, arrays := e.tile(), e.Arrays()
	a := answer{
		Output: arrays[0], SlideName: t.SlideName, X: t.X, Y: t.Y, Width: t.Width, Height: t.Height,
		TissueRatio: t.TissueRatio, PatchIdx: t.PatchIdx, Resolution: t.Resolution,
	}
	if len(arrays) > 1 {
		a.Embedding = arrays[1]
	}
	return a
}

// Arrays are the numbers alone, an array for each output of the mode.
func (e Example) Arrays() (arrays [][]float32) {
	for _, role := range e.Mode.Roles() {
		numbers := []float32{0.25, -1.5, 0.125}
		if role == prep.PredictionRole {
			numbers = []float32{1, 0, 1}
		}
		arrays = append(arrays, numbers)
	}
	return arrays
}

// octets are arrays as little-endian float32, as a data URI.
func octets(arrays [][]float32) string {
	var data []byte
	for _, numbers := range arrays {
		for _, v := range numbers {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		}
	}
	return "data:application/octet-stream;base64," + base64.StdEncoding.EncodeToString(data)
}

// Invocation is what the template needs for a route that takes what /invocations does.
type Invocation struct {
	Emulated bool
	Examples []*Example // one a mode
	First    string     // a model
	Metadata any
}

// Invocation is that of /invocations.
func (s Service) Invocation() Invocation {
	i := Invocation{First: s.Models[0].Name, Metadata: s.Metadata}
	for _, r := range s.Routes() {
		if e := r.Example(); e != nil {
			i.Examples = append(i.Examples, e)
		}
	}
	return i
}

// Endpoint is that of SageMaker's runtime.
func (s Service) Endpoint() Invocation {
	i := s.Invocation()
	i.Emulated = true
	return i
}

// Batch is the example of a call of many tiles.
func (s Service) Batch() *Example { return &Example{s.Models[0], s.Models[0].Modes[0]} }
