package prep

import (
	"bytes"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
)

func TestVectorCacheBounds(t *testing.T) {
	for _, test := range []struct {
		name           string
		entries, bytes int
		want           []int // of the texts 0 to 5, each with a vector of 8 bytes
	}{
		{"entries", 3, 1000, []int{0, 4, 5}},
		{"bytes", 100, 31, []int{0, 4, 5}},
		{"bytes to the last", 100, 32, []int{0, 3, 4, 5}},
		{"too few bytes for one", 100, 7, nil},
		{"no entries", 0, 1000, nil},
		{"no bytes", 100, 0, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newVectorCache(test.entries, test.bytes)
			vector := func(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, 8) }
			for i := range 6 {
				c.put(c.key([]byte(strconv.Itoa(i))), vector(i))
				c.get(c.key([]byte("0"))) // so that 0 is never the oldest
			}
			var held []int
			for i := range 6 {
				if got := c.get(c.key([]byte(strconv.Itoa(i)))); got != nil {
					held = append(held, i)
					if !bytes.Equal(got, vector(i)) {
						t.Errorf("text %d has %v", i, got)
					}
				}
			}
			if len(held) != len(test.want) {
				t.Fatalf("holds %v, not %v", held, test.want)
			}
			for i := range held {
				if held[i] != test.want[i] {
					t.Fatalf("holds %v, not %v", held, test.want)
				}
			}
			if stats := c.snapshot(); stats.Entries != len(held) || stats.Bytes != 8*len(held) {
				t.Errorf("holds %v: %+v", held, stats)
			}
		})
	}
}

// Requests share a vector, and none of them can change it: each is given a copy, in
// memory of its own, and what is done there is seen by no other.
func TestVectorCacheIsolation(t *testing.T) {
	p := NewPreparer(readModel(t, "expression"))
	text := jsonArray(count(64))
	var first []byte
	for i := range 3 {
		sample, err := p.Prepare(tileRequest(t, text))
		if err != nil {
			t.Fatal(err)
		}
		tensor := tensorOf(sample, 1)
		if i == 0 {
			first = bytes.Clone(tensor)
		} else if !bytes.Equal(tensor, first) {
			t.Fatalf("request %d has %v, the first had %v", i, tensor, first)
		}
		fill(tensor)
		sample.Release()
	}
}

// Of a text that two prepared at once the first vector stays.
func TestVectorCachePutTwice(t *testing.T) {
	c := newVectorCache(10, 1000)
	key := c.key([]byte("[1]"))
	c.put(key, []byte{1, 2, 3, 4})
	c.put(key, []byte{5, 6, 7, 8})
	if got := c.get(key); !bytes.Equal(got, []byte{1, 2, 3, 4}) {
		t.Errorf("the entry became %v", got)
	}
	if stats := c.snapshot(); stats.Bytes != 4 {
		t.Errorf("a text put twice: %+v", stats)
	}
}

// A key is secret: two caches have different ones for the same text, and one
// that differs in a single bit, or by a zero byte, has another.
func TestVectorCacheKeys(t *testing.T) {
	c := newVectorCache(1, 1)
	text := bytes.Repeat([]byte("0,"), 1000)
	keys := map[textKey]string{c.key(text): "text"}
	add := func(key textKey, what string) {
		if other, ok := keys[key]; ok {
			t.Errorf("%s has the key of %s", what, other)
		}
		keys[key] = what
	}
	add(newVectorCache(1, 1).key(text), "another cache")
	add(c.key(append(text, 0)), "a longer text")
	add(c.key(text[:len(text)-1]), "a shorter text")
	add(c.key(nil), "no text")
	for i := range 8 * len(text) {
		text[i/8] ^= 1 << (i % 8)
		add(c.key(text), "bit "+strconv.Itoa(i))
		text[i/8] ^= 1 << (i % 8)
	}
	if c.key(text) != c.key(bytes.Clone(text)) {
		t.Error("the same text has two keys")
	}
}

// Requests of several slides at once, with a cache too small for all of them
// and memory that goes from one to the next: each gets its own values.
func TestBulkRNAConcurrently(t *testing.T) {
	const genes, slides, workers, requests = 300, 8, 6, 300
	spec := pipelineModel(genes, Input{Shape: []int64{genes}, Domain: Counts, Transforms: []Transform{{Name: TPM}, {Name: Log1p}}})
	p := newBulkRNAPreparer(spec, spec.Inputs[0], newVectorCache(3, 1<<20))
	alone := newBulkRNAPreparer(spec, spec.Inputs[0], nil)
	r := rand.New(rand.NewPCG(8, 9))
	var texts [slides]string
	var want [slides][]byte
	for s := range slides {
		row := make([]float32, genes)
		for i := range row {
			row[i] = float32(r.IntN(500) - 1)
		}
		texts[s] = jsonArray(row)
		var err *Error
		if want[s], err = alone.prepare(arrayToken(t, texts[s])); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			for range requests {
				s := r.IntN(slides)
				tensor, err := p.prepare(arrayToken(t, texts[s]))
				if err != nil {
					t.Error(err)
				}
				if !bytes.Equal(tensor, want[s]) {
					t.Errorf("slide %d was given other values", s)
				}
			}
		})
	}
	wg.Wait()
	stats := p.cache.snapshot()
	if stats.Hits+stats.Misses != workers*requests || stats.Hits == 0 || stats.Entries != 3 {
		t.Errorf("%d requests: %+v", workers*requests, stats)
	}
}

// One model's cache knows nothing of another's vectors of the same text.
func TestRNACacheBelongsToModel(t *testing.T) {
	spec := readModel(t, "expression")
	plain := *spec
	plain.Inputs = append([]Input(nil), spec.Inputs...)
	plain.Inputs[1].Transforms = nil
	logged, raw := NewPreparer(spec), NewPreparer(&plain)
	off := NewPreparer(spec, RNACache(0, 0))
	text := jsonArray(count(64))
	for range 2 {
		for _, test := range []struct {
			p    *Preparer
			want float32
		}{{logged, 4.158883}, {raw, 63}, {off, 4.158883}} {
			sample, err := test.p.Prepare(tileRequest(t, text))
			if err != nil {
				t.Fatal(err)
			}
			if got := bytesFloat(tensorOf(sample, 1))[63]; got != test.want {
				t.Errorf("%v, not %v", got, test.want)
			}
			sample.Release()
		}
	}
	for _, p := range []*Preparer{logged, raw} {
		if stats := p.RNACacheStats(); stats.Hits != 1 || stats.Misses != 1 {
			t.Errorf("%+v", stats)
		}
	}
	if stats := off.RNACacheStats(); stats != (CacheStats{}) {
		t.Errorf("switched off: %+v", stats)
	}
}
