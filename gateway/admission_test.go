package gateway

import (
	"bytes"
	"sync"
	"testing"
)

// A small body that is held does not hold the memory that a large one has left: only
// its own size is counted.
func TestSmallBodyHoldsLittleMemory(t *testing.T) {
	const large, small = 25 << 20, 80 << 10
	pool := &bodies{limit: large, admission: newAdmission(1, 1, 4*large)}
	read := func(length, size int) *body {
		b := &body{owner: pool}
		if err := b.fill(length, bytes.NewReader(make([]byte, size))); err != nil {
			t.Fatal(err)
		}
		if len(b.B) != size {
			t.Fatalf("%d bytes of %d are read", len(b.B), size)
		}
		return b
	}
	for _, length := range []int{small, -1} { // as declared, chunked
		for range 10 {
			read(large, large).release()
			b := read(length, small)
			if b.reserved > 2*small || cap(b.B) > b.reserved*9/8 {
				t.Errorf("a body of %d bytes, for which %d are set aside, holds %d", small, b.reserved, cap(b.B))
			}
			defer b.release()
		}
	}
}

// Whoever asks for more than there is takes nothing away from those who do not.
func TestRefusalTakesNothing(t *testing.T) {
	a := newAdmission(10, 1, 10)
	if err := a.reserve(2); err != nil {
		t.Fatal(err)
	}
	if err := a.enter(2); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for range 100000 {
				if a.reserve(9) == nil || a.enter(9) == nil {
					t.Error("more is taken than there is")
				}
			}
		})
	}
	for range 2 {
		all.Go(func() {
			for range 100000 {
				if err := a.reserve(1); err != nil {
					t.Errorf("there is room: %v", err)
				}
				a.bytes.give(1)
				if err := a.enter(1); err != nil {
					t.Errorf("there is room: %v", err)
				}
				a.leave(1)
			}
		})
	}
	all.Wait()
}
