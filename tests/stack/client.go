package stack

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Tile is a tile request, as clients send it.
type Tile struct {
	ImageData []byte  `json:"image_data"` // encoding/json writes bytes as base64
	SlideName string  `json:"slide_name"`
	X         int     `json:"x"`
	Y         int     `json:"y"`
	Width     int     `json:"width"`
	Height    int     `json:"height"`
	Ratio     float64 `json:"tissue_ratio"`
	PatchIdx  int     `json:"patch_idx"`
	ModelName string  `json:"model_name,omitempty"`
	Mode      string  `json:"mode,omitempty"`
	// BulkRNA are raw counts in the order of the model's input genes.
	BulkRNA []float64 `json:"bulk_rna,omitempty"`
}

// Body is the request's JSON.
func (t Tile) Body() []byte {
	body, err := json.Marshal(t)
	if err != nil {
		panic(err) // it holds nothing that cannot be written
	}
	return body
}

// Answer is the answer to a tile request, a success or a failure.
type Answer struct {
	Status int
	Header http.Header
	Raw    []byte

	Output    []float32
	Embedding []float32
	SlideName string `json:"slide_name"`
	PatchIdx  int    `json:"patch_idx"`

	Detail    string
	Code      string
	RequestID string `json:"request_id"`
}

// Post sends a body to a path of the API.
func (s *Stack) Post(path string, body []byte) (*Answer, error) {
	response, err := http.Post(s.URL+path, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return read(response)
}

// Get fetches a path of the API.
func (s *Stack) Get(path string) (*Answer, error) {
	response, err := http.Get(s.URL + path)
	if err != nil {
		return nil, err
	}
	return read(response)
}

func read(response *http.Response) (*Answer, error) {
	defer response.Body.Close()
	a := &Answer{Status: response.StatusCode, Header: response.Header}
	var err error
	if a.Raw, err = io.ReadAll(response.Body); err != nil {
		return nil, err
	}
	if len(a.Raw) == 0 {
		return a, nil
	}
	if err := json.Unmarshal(a.Raw, a); err != nil {
		return nil, fmt.Errorf("an answer of status %d that is not JSON: %w", a.Status, err)
	}
	return a, nil
}

// Admin is what a path of METRICS_PORT answers, such as /diagnostics; anything but a 200
// is an error.
func (s *Stack) Admin(path string) ([]byte, error) {
	response, err := http.Get(strings.TrimSuffix(s.MetricsURL, "/metrics") + path)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, response.Status, text)
	}
	return text, err
}

// Metric is the value of a series of the gateway's metrics, written as in the
// exposition format, such as `histogate_model_ready{model="h1"}`; 0 if there is none.
func (s *Stack) Metric(series string) (float64, error) {
	text, err := s.Admin("/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			var value float64
			_, err := fmt.Sscan(rest, &value)
			return value, err
		}
	}
	return 0, nil
}

// TritonVersion is what the gateway's metrics say it is connected to.
func (s *Stack) TritonVersion() (string, error) {
	text, err := s.Admin("/metrics")
	_, rest, _ := strings.Cut(string(text), `histogate_triton_info{version="`)
	version, _, _ := strings.Cut(rest, `"`)
	return version, err
}

// TilePaths are the committed H&E tiles, in a fixed order.
func TilePaths() []string {
	paths, err := filepath.Glob(filepath.Join(Root(), "tests", "testdata", "tiles", "*.png"))
	if err != nil || paths == nil {
		panic("no tiles under tests/testdata/tiles")
	}
	slices.Sort(paths)
	return paths
}

// ReadTile reads a committed tile.
func ReadTile(path string) []byte {
	data, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	return data
}
