package gateway

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"histogate/tritonclient/kserve"
	"histogate/tritonclient/tritontest"
)

// A mask is compressed for who takes gzip, in a call of many too, and nothing else is.
func TestMasksAreCompressed(t *testing.T) {
	masks := strings.NewReplacer("role: prediction, dtype: float32, shape: [1, 2], transforms: [{name: round}]", "role: prediction, dtype: float32, shape: [1, 2], transforms: [{name: mask}]")
	r := launch(t, masks.Replace(pairSpec), pairConfig, nil, nil)
	r.await(t, http.StatusOK)
	r.answerCallers(func(_ context.Context, q *kserve.ModelInferRequest) (*kserve.ModelInferResponse, error) {
		return tritontest.Zeros(r.config, q), nil
	})
	tile := strings.Replace(goodTile, `,"model_name":"small","mode":"embedding"`, "", 1)
	one := `{"output":[0,0],"slide_name":"S1","x":1,"y":2,"width":8,"height":8,"tissue_ratio":null,"patch_idx":7,"resolution":null,"embedding":`
	for _, test := range []struct {
		path, body, accept string
		compressed         bool
		want               string
	}{
		{"/api/predict/small", tile, "gzip, deflate", true, one + `null}`},
		{"/api/predict/small", tile, "br;q=1, GZip;q=0.5", true, one + `null}`},
		{"/api/predict/small", tile, "gzip;q=0", false, one + `null}`},
		{"/api/predict/small", tile, "gzip;q=0.00, *", false, one + `null}`},
		{"/api/predict/small", tile, "identity", false, one + `null}`},
		{"/api/predict_with_embedding/small", tile, "gzip", true, one + `[0,0,0]}`},
		{"/api/batch/small", `{"mode":"prediction","requests":[` + tile + `,{}]}`, "gzip", true, `{"responses":[` + one + `null},{"error":`},
		{"/api/embed/small", tile, "gzip", false, `{"output":[0,0,0],`},
	} {
		a := r.post(t, test.path, test.body, "Accept-Encoding", test.accept)
		body := a.raw
		if test.compressed {
			z, err := gzip.NewReader(strings.NewReader(a.raw))
			if err != nil {
				t.Errorf("%s, %s: %v: %q", test.path, test.accept, err, a.raw)
				continue
			}
			plain, err := io.ReadAll(z)
			if err != nil {
				t.Errorf("%s, %s: %v", test.path, test.accept, err)
			}
			body = string(plain)
		}
		encoding, vary := a.header.Get("Content-Encoding"), a.header.Get("Vary")
		if a.status != http.StatusOK || !strings.HasPrefix(body, test.want) || (encoding == "gzip") != test.compressed {
			t.Errorf("%s, %s: %d, %q %s", test.path, test.accept, a.status, encoding, body)
		}
		if masked := test.path != "/api/embed/small"; (vary == "Accept-Encoding") != masked {
			t.Errorf("%s: Vary is %q", test.path, vary)
		}
	}
	a := r.post(t, "/api/predict/small", tile, "Accept-Encoding", "gzip", "Accept", "application/octet-stream")
	if a.header.Get("Content-Encoding") != "" || a.raw != string(bytes.Repeat([]byte{0}, 8)) {
		t.Errorf("in binary: %q %q", a.header.Get("Content-Encoding"), a.raw)
	}
}
