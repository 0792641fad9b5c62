package prep

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
)

const poison = 0xdb

func fill(b []byte) {
	for i := range b {
		b[i] = poison
	}
}

// tensorOf is what the sample writes for its spec's i-th input.
func tensorOf(s *Sample, i int) []byte {
	tensor := make([]byte, s.owner.spec.SentBytes(i))
	fill(tensor)
	s.Write(i, tensor)
	return tensor
}

// spoilPools fills what lies in the preparer's pools with a pattern. A buffer
// that is in a pool and in a request's hands at once is found twice: by its
// contents, and by the race detector.
func spoilPools(p *Preparer) {
	s := p.samples.Get().(*Sample)
	fill(s.rgb)
	image := p.images.Get().(*[]byte)
	fill((*image)[:cap(*image)])
	p.images.Put(image)
	s.Release()
}

// Good and bad requests at once on one preparer, its pools poisoned all the
// while: each has the result that it has alone.
func TestBuffersAreNeverShared(t *testing.T) {
	const workers, rounds = 8, 12
	type request struct {
		name, body string
		want       []byte // nil for one that is refused
		wantErr    string
	}
	var requests []request
	add := func(name string, body []byte) {
		r := request{name: name, body: string(body)}
		sample, err := NewPreparer(testSpec()).Prepare(parse(t, body))
		if err != nil {
			r.wantErr = err.Error()
		} else {
			r.want = tensorOf(sample, 0) // of a preparer of its own
		}
		requests = append(requests, r)
	}
	for i, file := range tileFiles(t) {
		add(file, tileBody(readTile(t, file), fmt.Sprint("slide ", i), i))
	}
	for name, body := range badBodies(t) {
		add(name, body)
	}

	p := NewPreparer(testSpec())
	run := func(r request) error {
		request, err := ParseRequest([]byte(r.body))
		if err != nil {
			return err
		}
		sample, err := p.Prepare(request)
		if err != nil || r.wantErr != "" {
			if err == nil || err.Error() != r.wantErr {
				return fmt.Errorf("%s: want %s, the error is %w", r.name, r.wantErr, err)
			}
			return nil
		}
		spoilPools(p)
		if !bytes.Equal(tensorOf(sample, 0), r.want) {
			return errors.New(r.name + ": not the tensor that it has alone")
		}
		fill(sample.rgb)
		sample.Release()
		return nil
	}
	var wait sync.WaitGroup
	stop := make(chan struct{})
	for worker := range workers {
		wait.Go(func() {
			for i := range rounds {
				if err := run(requests[(worker*5+i)%len(requests)]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var spoiler sync.WaitGroup
	spoiler.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				spoilPools(p)
			}
		}
	})
	wait.Wait()
	close(stop)
	spoiler.Wait()
}

// What a failed request leaves in a buffer is not seen in the next answer. Here
// the two certainly share: there is one sample and one image buffer.
func TestFailedRequestLeavesNoMark(t *testing.T) {
	files := tileFiles(t)
	good := parse(t, tileBody(readTile(t, files[1]), "good", 1))
	alone, err := NewPreparer(testSpec()).Prepare(good)
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range badBodies(t) {
		p := NewPreparer(testSpec())
		sample, image := p.samples.New().(*Sample), new([]byte)
		// Under the race detector a pool drops some of what it is given: then
		// the same buffers come out of New.
		p.samples.New = func() any { return sample }
		p.images.New = func() any { return image }
		if _, err := p.Prepare(parse(t, body)); err == nil {
			t.Fatalf("%s was taken", name)
		}
		got, err := p.Prepare(good)
		if err != nil {
			t.Fatalf("after %s: %v", name, err)
		}
		if got != sample {
			t.Fatal("the sample is not the one that failed")
		}
		if !bytes.Equal(tensorOf(got, 0), tensorOf(alone, 0)) {
			t.Errorf("after %s the tensor is another", name)
		}
		if cap(*image) == 0 {
			t.Error("the buffer of the encoded image is not kept")
		}
	}
}

// A body can be far larger than any tile. The buffer for it goes with its request.
func TestLargeBuffersAreNotKept(t *testing.T) {
	p := NewPreparer(testSpec())
	body := tileBody(make([]byte, 2<<20), "large", 0) // no image at all
	if _, err := p.Prepare(parse(t, body)); err == nil {
		t.Fatal("it was taken")
	}
	if kept := p.images.Get().(*[]byte); cap(*kept) > mostKept {
		t.Errorf("a buffer of %d bytes is kept", cap(*kept))
	}
}
