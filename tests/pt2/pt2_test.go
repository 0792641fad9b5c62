//go:build pt2

package pt2

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"histogate/tests/stack"
	"histogate/tritonclient"
)

// tolerance is how far an answer may be from torch's: what is compiled rounds
// otherwise than what is run eagerly, and by the size of the batch.
const tolerance = 1e-6

// Every mode of every model, all at once, against torch run on each tile alone.
func TestEveryModeAgainstTorch(t *testing.T) {
	// A long wait, so that a busy machine fills batches too.
	s := start(t, options(modelFolder(t, nil), "BATCH_MAX_WAIT_MS=400", "BATCH_MAX_SIZE=8"))
	var requests []request
	for i := range 16 {
		requests = append(requests,
			newRequest(t, "h1", "embedding", i),
			newRequest(t, "m-optimus", "prediction", i),
			newRequest(t, "m-optimus", "embedding", i),
			newRequest(t, "m-optimus", "prediction_with_embedding", i))
		if i%2 == 0 {
			requests = append(requests, newRequest(t, "tissue-seg", "prediction", i))
		}
	}
	want := reference(t, requests)
	answers := make([]*stack.Answer, len(requests))
	var group sync.WaitGroup
	for i, r := range requests {
		body := r.body(t)
		group.Go(func() {
			var err error
			if answers[i], err = s.Post("/invocations", body); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if t.Failed() {
		return
	}
	worst := map[string]float64{}
	for i, r := range requests {
		a := answers[i]
		if a.Status != http.StatusOK || a.PatchIdx != r.PatchIdx {
			t.Fatalf("%s, %s: status %d, patch %d: %s", r.ModelName, r.Mode, a.Status, a.PatchIdx, a.Detail)
		}
		note := func(what string, got, want []float32) {
			key := r.ModelName + " " + what
			worst[key] = max(worst[key], distance(got, want))
		}
		prediction, embedding := want[i].Outputs[0], want[i].Outputs[len(want[i].Outputs)-1]
		if r.Mode == "embedding" {
			note("embedding", a.Output, floats(embedding))
		} else {
			note("prediction", a.Output, settled(t, r.ModelName, a.Output, floats(want[i].Raw[0]), floats(prediction)))
		}
		if both := r.Mode == "prediction_with_embedding"; both {
			note("embedding beside the prediction", a.Embedding, floats(embedding))
		} else if a.Embedding != nil {
			t.Errorf("%s, %s: an embedding of %d", r.ModelName, r.Mode, len(a.Embedding))
		}
	}
	for what, d := range worst {
		t.Logf("%-45s at most %.3g from torch", what, d)
		if d > tolerance {
			t.Errorf("%s is %g from torch, more than %g", what, d, tolerance)
		}
	}
	checkBatches(t, s)
	checkRaw(t, s, requests, want)
	checkMetadata(t, s)
}

// mostSettled is the share of an answer's values that settled may take over; one it may.
const mostSettled = 0.001

// settled is what torch gives, but what was answered where a step of the transform
// hangs on less than the tolerance of what goes into it. Those are few, or the answer
// is held against itself.
func settled(t *testing.T, model string, answered, raw, want []float32) []float32 {
	t.Helper()
	if len(answered) != len(want) {
		return want
	}
	taken := 0
	for i, v := range raw {
		var distance float64 // from where the transform jumps
		if model == "tissue-seg" {
			distance = math.Abs(float64(v))
		} else {
			_, fraction := math.Modf(math.Expm1(float64(v)))
			distance = math.Abs(fraction-0.5) / math.Exp(float64(v))
		}
		if answered[i] != want[i] && distance < 2*tolerance && math.Abs(float64(answered[i]-want[i])) <= 1 {
			want[i] = answered[i]
			taken++
		}
	}
	if float64(taken) > max(1, mostSettled*float64(len(want))) {
		t.Errorf("%s: %d of %d values are on the other side of a jump of the transform", model, taken, len(want))
	}
	return want
}

// checkBatches holds that Triton ran several requests at once, of each model.
func checkBatches(t *testing.T, s *stack.Stack) {
	t.Helper()
	client := connect(t, s)
	for _, model := range []string{"h1", "m-optimus", "tissue-seg"} {
		statistics, err := client.ModelStatistics(t.Context(), model)
		if err != nil {
			t.Fatal(err)
		}
		largest := uint64(0)
		for _, batch := range statistics.BatchStats {
			largest = max(largest, batch.BatchSize)
		}
		t.Logf("%s: %d inferences in %d executions, batches of up to %d", model, statistics.InferenceCount, statistics.ExecutionCount, largest)
		if largest < 2 || largest > 8 {
			t.Errorf("%s: Triton's largest batch has %d rows, BATCH_MAX_SIZE is 8", model, largest)
		}
		config, err := client.ModelConfig(t.Context(), model)
		if err != nil {
			t.Fatal(err)
		}
		if delay := config.GetDynamicBatching().GetMaxQueueDelayMicroseconds(); delay != 400_000 || config.MaxBatchSize != 8 {
			t.Errorf("%s: Triton waits %d us for batches of %d", model, delay, config.MaxBatchSize)
		}
	}
}

func connect(t *testing.T, s *stack.Stack) *tritonclient.Client {
	t.Helper()
	client, err := tritonclient.New(s.TritonAddress(), tritonclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// checkRaw holds what the checkpoints give, before any transform, against torch on
// the very same tensors.
func checkRaw(t *testing.T, s *stack.Stack, requests []request, want []expected) {
	t.Helper()
	client := connect(t, s)
	answers := make([]*tritonclient.Answer, len(requests))
	var group sync.WaitGroup
	for i, r := range requests {
		config, err := client.ModelConfig(t.Context(), r.ModelName)
		if err != nil {
			t.Fatal(err)
		}
		call := &tritonclient.InferRequest{Model: r.ModelName, Write: func(k int, dst []byte) { copy(dst, want[i].Inputs[k]) }}
		for _, in := range config.Input {
			call.Inputs = append(call.Inputs, tritonclient.TensorSpec{
				Name: in.Name, Datatype: tritonclient.DatatypeOf(in.DataType), Shape: append([]int64{1}, in.Dims...),
			})
		}
		for _, out := range config.Output {
			call.Outputs = append(call.Outputs, tritonclient.TensorSpec{
				Name: out.Name, Datatype: tritonclient.DatatypeOf(out.DataType), Shape: append([]int64{1}, out.Dims...),
			})
		}
		group.Go(func() {
			var err error
			if answers[i], err = client.Infer(t.Context(), call); err != nil {
				t.Errorf("%s: %v", r.ModelName, err)
			}
		})
	}
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
	worst := map[string]float64{}
	for i, answer := range answers {
		for k, out := range answer.Outputs {
			key := requests[i].ModelName + " " + out.Name
			worst[key] = max(worst[key], distance(floats(out.Data), floats(want[i].Raw[k])))
		}
	}
	for what, d := range worst {
		t.Logf("%-45s at most %.3g from torch, untransformed", what, d)
		if d > tolerance {
			t.Errorf("%s is %g from torch, more than %g", what, d, tolerance)
		}
	}
}

// checkMetadata holds that clients are told the checkpoint's names and types.
func checkMetadata(t *testing.T, s *stack.Stack) {
	t.Helper()
	a, err := s.Get("/api/metadata/m-optimus-stx")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		InputDType  string `json:"input_dtype"`
		Inputs      map[string]struct{ DType string }
		Outputs     map[string]struct{ Shape []any }
		InputGenes  []string `json:"input_genes"`
		OutputGenes []string `json:"output_genes"`
	}
	if err := json.Unmarshal(a.Raw, &got); err != nil {
		t.Fatal(err)
	}
	if got.InputDType != "torch.float16" || got.Inputs["bulkrna_processed_counts"].DType != "float32" ||
		fmt.Sprint(got.Outputs["expression"].Shape) != "[batch 40]" || len(got.InputGenes) != 64 || len(got.OutputGenes) != 40 {
		t.Errorf("the metadata is %.600s", a.Raw)
	}
}

// A package for another processor and one whose metadata is wrong are refused, each
// in a sentence; the one that is good is served.
func TestBrokenCheckpointsBesideAGoodOne(t *testing.T) {
	s, err := stack.Launch(options(modelFolder(t, func(file string, data []byte) []byte {
		switch file {
		case tissueFile:
			return stamped(t, data)
		case optimusFile:
			const old, wrong = `"shape": ["batch", 64]`, `"shape": ["batch", 65]`
			if bytes.Count(data, []byte(old)) != 1 {
				t.Fatal("the metadata has another form")
			}
			return resummed(t, bytes.Replace(data, []byte(old), []byte(wrong), 1))
		default:
			return data
		}
	})))
	if err != nil {
		t.Fatal(err)
	}
	stopped(t, s)
	good := newRequest(t, "h1", "embedding", 0)
	want := reference(t, []request{good})[0]
	body := good.body(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		a, err := s.Post("/invocations", body)
		if err != nil {
			t.Fatal(err)
		}
		if a.Status == http.StatusOK {
			if d := distance(a.Output, floats(want.Outputs[0])); d > tolerance {
				t.Errorf("the good model is %g from torch", d)
			}
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the good model is not served: %s", a.Raw)
		case <-time.After(100 * time.Millisecond):
		}
	}
	sentences := map[string]string{
		"tissue-seg": "tissue_seg_aoti.pt2 is built for " + otherCPU + " and this machine is " + thisCPU + "; export it anew on " + thisCPU,
		"m-optimus": "model_metadata.json in m_optimus_prediction.pt2 contradicts the model's spec: input 2, \"bulkrna_processed_counts\", " +
			"has the shape [batch, 65] in the metadata; the spec has \"bulkrna\" with [batch, 64]",
	}
	ping, err := s.Get("/ping")
	if err != nil {
		t.Fatal(err)
	}
	for model, sentence := range sentences {
		a, err := s.Post("/invocations", newRequest(t, model, "prediction", 1).body(t))
		if err != nil {
			t.Fatal(err)
		}
		if a.Status != http.StatusServiceUnavailable || a.Code != "backend_unavailable" || !strings.Contains(a.Detail, sentence) {
			t.Errorf("%s: status %d, %q", model, a.Status, a.Detail)
		}
		if !strings.Contains(ping.Detail, model+": "+sentence) || ping.Status != http.StatusServiceUnavailable {
			t.Errorf("/ping: status %d, %q", ping.Status, ping.Detail)
		}
	}
	if strings.Contains(ping.Detail, "h1:") {
		t.Errorf("/ping: %q", ping.Detail)
	}
}

// Tiles that go to Triton as bytes have the very answers of those that go as floats,
// of checkpoints that take float32 and one that takes float16.
func TestTilesOfBytes(t *testing.T) {
	specs := filepath.Join(t.TempDir(), "specs")
	if err := os.CopyFS(specs, os.DirFS(root("tests", "pt2", "testdata", "specs"))); err != nil {
		t.Fatal(err)
	}
	for _, model := range []string{"h1", "m-optimus", "tissue-seg"} {
		path := filepath.Join(specs, model, "spec.yaml")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append([]byte("tile_transport: uint8\n"), text...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// What is compiled rounds by the size of the batch, and a request may share one with
	// a probe of the gateway's: here each row is its own batch.
	const alone = "BATCH_MAX_SIZE=1"
	floats := start(t, options(modelFolder(t, nil), alone))
	o := options(modelFolder(t, nil), alone)
	o.Repository = specs
	ofBytes := start(t, o)
	answersAsTorch(t, ofBytes)
	client := connect(t, ofBytes)
	for i, r := range []request{
		newRequest(t, "h1", "embedding", 0), newRequest(t, "h1", "embedding", 1), newRequest(t, "tissue-seg", "prediction", 2),
		newRequest(t, "m-optimus", "prediction_with_embedding", 1), newRequest(t, "m-optimus", "prediction_with_embedding", 3),
	} {
		metadata, err := client.ModelMetadata(t.Context(), r.ModelName)
		if err != nil {
			t.Fatal(err)
		}
		want, err := floats.Post("/invocations", r.body(t))
		if err != nil {
			t.Fatal(err)
		}
		got, err := ofBytes.Post("/invocations", r.body(t))
		if err != nil {
			t.Fatal(err)
		}
		if got.Status != http.StatusOK || len(got.Output) == 0 || !slices.Equal(got.Output, want.Output) || !slices.Equal(got.Embedding, want.Embedding) {
			t.Errorf("request %d, %s: status %d, another answer than as floats: %s", i, r.ModelName, got.Status, got.Detail)
		}
		if metadata.Inputs[0].Datatype != string(tritonclient.Uint8) {
			t.Errorf("%s: Triton takes the tile as %s", r.ModelName, metadata.Inputs[0].Datatype)
		}
	}
}

// What the backend makes of a package: batches, types, failures of a device.
func TestBackend(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), root("build", "torch", "bin", "python"), root("tests", "pt2", "backend.py"))
	if out, err := cmd.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "ok\n") {
		t.Errorf("%v: %s", err, out)
	}
}
