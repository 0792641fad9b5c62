package gateway

import (
	"bytes"
	"context"
	"encoding/base64"
	"image"
	"image/png"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	modelrepo "histogate/gateway/repository"
	"histogate/prep"
	"histogate/tritonclient/kserve"
	"histogate/tritonclient/tritontest"
)

// ofBytes is the model "small" with its tile sent as bytes.
func ofBytes(t *testing.T) (spec, config string) {
	t.Helper()
	out := t.TempDir()
	if err := modelrepo.Convert(out, repository(t, testSpec, testConfig), nil, modelrepo.Changes{TileTransport: prep.UInt8Transport}); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(out, "small", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	return read("spec.yaml"), read("config.pbtxt")
}

// A tile that goes as bytes is its samples, a plane for each channel, and a probe is a
// black tile; in messages, with the batch of the warm-up as large as any.
func TestTileOfBytes(t *testing.T) {
	spec, config := ofBytes(t)
	seen := make(chan *kserve.ModelInferRequest, 100)
	r := launch(t, spec, config, nil, func(s *tritontest.Server) {
		m := s.Models["small"]
		m.Infer = func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
			seen <- q
			return tritontest.Zeros(m.Config, q), nil
		}
	})
	r.await(t, http.StatusOK)
	const pixels = 8 * 8
	want := make([]byte, 3*pixels)
	picture := image.NewRGBA(image.Rect(0, 0, 8, 8))
	for i := range pixels {
		rgba := picture.Pix[4*i:][:4]
		copy(rgba, []byte{byte(i), byte(100 + i), byte(255 - i), 255})
		want[i], want[pixels+i], want[2*pixels+i] = rgba[0], rgba[1], rgba[2]
	}
	var encoded bytes.Buffer
	if err := png.Encode(&encoded, picture); err != nil {
		t.Fatal(err)
	}
	body := `{"image_data":"` + base64.StdEncoding.EncodeToString(encoded.Bytes()) +
		`","slide_name":"S1","x":1,"y":2,"width":8,"height":8,"patch_idx":7,"model_name":"small","mode":"embedding"}`
	if a := r.post(t, "/invocations", body); a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, a.raw)
	}
	r.stop()
	var asked, probes, full int
	for range len(seen) {
		q := <-seen
		if q.Inputs[0].Datatype != "UINT8" {
			t.Errorf("the tile is sent as %s", q.Inputs[0].Datatype)
		}
		rows, data := int(q.Inputs[0].Shape[0]), q.RawInputContents[0]
		switch {
		case q.Id != canaryID:
			asked++
			if !bytes.Equal(data, want) {
				t.Errorf("the tile is % x, want % x", data, want)
			}
		case !bytes.Equal(data, make([]byte, rows*3*pixels)):
			t.Errorf("a probe of %d rows is % x", rows, data)
		default:
			probes++
			full = max(full, rows)
		}
	}
	if asked != 1 || probes < 2 || full != 4 {
		t.Errorf("%d requests, %d probes of up to %d rows", asked, probes, full)
	}
}

// A table that is not the spec's is refused at the start, be it in the file or in what
// Triton has loaded, and so is a tile of another type. It is said what to run.
func TestRefusesAnotherTable(t *testing.T) {
	spec, config := ofBytes(t)
	another := func(text, old, changed string) string {
		if !strings.Contains(text, old) {
			t.Fatalf("no %q in\n%s", old, text)
		}
		return strings.Replace(text, old, changed, 1)
	}
	const run = "gateway repository convert"
	for name, test := range map[string]struct{ spec, config, want string }{
		"mean":            {another(spec, "mean: [0,", "mean: [0.5,"), config, "config.pbtxt: the parameter tile_table_sha256 is "},
		"floats by spec":  {another(spec, "tile_transport: uint8", "tile_transport: float"), config, "config.pbtxt: it has a table for a tile that goes as bytes"},
		"floats in file":  {another(testSpec, "task:", "tile_transport: uint8\ntask:"), testConfig, "type of input tile is FP32, spec.yaml says UINT8"},
		"no table at all": {another(testSpec, "task:", "tile_transport: uint8\ntask:"), testConfig, "config.pbtxt: the parameter tile_table_sha256 is missing"},
	} {
		folder := repository(t, test.spec, test.config)
		_, err := readModel(new(Config), filepath.Join(folder, "small"), "small")
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), run) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := launch(t, spec, config, nil, func(s *tritontest.Server) {
		p := s.Models["small"].Config.Parameters["tile_table_sha256"]
		p.StringValue = strings.Repeat("0", len(p.StringValue))
	})
	select {
	case err := <-r.ended:
		if err == nil || !strings.Contains(err.Error(), "Triton's configuration of the model: the parameter tile_table_sha256 is 00000") || !strings.Contains(err.Error(), run) {
			t.Errorf("ended with %v", err)
		}
		r.ended <- nil // for the clean-up
	case <-time.After(10 * time.Second):
		t.Error("it serves with another table")
	}
}
