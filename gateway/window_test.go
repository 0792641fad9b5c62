package gateway

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"histogate/tritonclient/kserve"
	"histogate/tritonclient/tritontest"
)

func here() bool { return true }

// opened is a window that lets requests through.
func opened(places int) *window {
	w := newWindow(places)
	w.open(true)
	return w
}

// One slide with a hundred tiles does not starve another with one.
func TestWindowTakesTurnsBySlide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := opened(1)
		if err := w.enter(t.Context(), []byte("first"), here); err != nil {
			t.Fatal(err)
		}
		var order []string
		arrive := func(slide string, n int) {
			for i := range n {
				go func() {
					if err := w.enter(t.Context(), []byte(slide), here); err != nil {
						t.Error(err)
					}
					order = append(order, fmt.Sprint(slide, i)) // one place: nobody else is here
					w.leave()
				}()
				synctest.Wait()
			}
		}
		arrive("a", 3)
		arrive("b", 1)
		arrive("a", 1) // another caller of the same slide
		arrive("c", 2)
		w.leave()
		synctest.Wait()
		want := []string{"a0", "b0", "c0", "a1", "c1", "a2", "a0"}
		if !slices.Equal(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
		if len(w.slides) != 0 || w.turns.Len() != 0 || w.count != 0 || w.free != 1 {
			t.Errorf("left behind: %d slides, %d turns, %d waiting, %d free", len(w.slides), w.turns.Len(), w.count, w.free)
		}
	})
}

func TestWindowParksWhileClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(2)
		var served atomic.Int64
		for range 5 {
			go func() {
				if err := w.enter(t.Context(), nil, here); err != nil {
					t.Error(err)
				}
				served.Add(1)
			}()
			synctest.Wait()
		}
		if served.Load() != 0 || w.parked() != 5 {
			t.Errorf("%d served and %d parked by a closed window", served.Load(), w.parked())
		}
		w.open(true)
		synctest.Wait()
		if served.Load() != 2 || w.parked() != 3 {
			t.Errorf("%d served and %d parked by a window of 2", served.Load(), w.parked())
		}
		w.open(false)
		w.leave()
		synctest.Wait()
		if served.Load() != 2 {
			t.Error("a closed window let a request through")
		}
		w.open(true)
		w.leave()
		w.leave()
		synctest.Wait()
		if served.Load() != 5 {
			t.Errorf("%d served in the end", served.Load())
		}
	})
}

func TestWindowKeepsDeadlinesAndDropsThoseWhoWent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := opened(1)
		away := func() bool { return false }
		if err := w.enter(t.Context(), nil, away); !errors.Is(err, errCallerGone) {
			t.Errorf("a caller who went before there was anything to wait for: %v", err)
		}
		if err := w.enter(t.Context(), nil, here); err != nil {
			t.Fatal(err)
		}
		late, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := w.enter(late, nil, here); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("a deadline of 1 s: %v after %s", err, time.Since(began))
		}
		gone, stayed := make(chan error, 1), make(chan error, 1)
		go func() { gone <- w.enter(t.Context(), nil, away) }()
		synctest.Wait()
		go func() { stayed <- w.enter(t.Context(), nil, here) }()
		synctest.Wait()
		w.leave()
		if err := <-gone; !errors.Is(err, errCallerGone) {
			t.Errorf("a caller who went: %v", err)
		}
		if err := <-stayed; err != nil {
			t.Errorf("the one behind: %v", err)
		}
	})
}

// Whatever happens at once, no place is lost and none is given twice.
func TestWindowNeverLosesAPlace(t *testing.T) {
	const places = 3
	w := opened(places)
	var mu sync.Mutex
	inside := 0
	var all sync.WaitGroup
	for i := range 2000 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(3000))*time.Microsecond)
			defer cancel()
			if w.enter(ctx, []byte{byte(i % 7)}, func() bool { return i%5 != 0 }) != nil {
				return
			}
			mu.Lock()
			if inside++; inside > places {
				t.Errorf("%d inside a window of %d", inside, places)
			}
			mu.Unlock()
			time.Sleep(time.Duration(rand.IntN(100)) * time.Microsecond)
			mu.Lock()
			inside--
			mu.Unlock()
			w.leave()
		})
		if i%100 == 0 {
			w.open(i%200 == 0)
		}
	}
	w.open(true)
	all.Wait()
	if w.free != places || w.count != 0 || w.turns.Len() != 0 {
		t.Errorf("%d free of %d, %d waiting", w.free, places, w.count)
	}
}

// A window that shrinks lets nobody in until it is below its new size, and one that
// grows lets in who waits.
func TestWindowResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := opened(2)
		var inside atomic.Int64
		for range 6 {
			go func() {
				if err := w.enter(t.Context(), nil, here); err != nil {
					t.Error(err)
				}
				inside.Add(1)
			}()
			synctest.Wait()
		}
		hold := func(want int64) {
			t.Helper()
			synctest.Wait()
			if n := inside.Load(); n != want {
				t.Errorf("%d are inside, want %d", n, want)
			}
		}
		leave := func() {
			inside.Add(-1)
			w.leave()
		}
		hold(2)
		w.resize(4)
		hold(4)
		w.resize(1)
		leave()
		hold(3)
		leave()
		leave()
		hold(1)
		leave()
		hold(1)
		leave()
		hold(1)
		leave()
		hold(0)
		if w.free != 1 || w.count != 0 {
			t.Errorf("%d free, %d waiting", w.free, w.count)
		}
	})
}

// A group of instances is there once for each of its GPUs, which Triton tells.
func TestPlaces(t *testing.T) {
	group := func(count int32, gpus ...int32) *kserve.ModelInstanceGroup {
		return &kserve.ModelInstanceGroup{Count: count, Gpus: gpus}
	}
	for _, test := range []struct {
		groups []*kserve.ModelInstanceGroup
		want   int
	}{
		{nil, 8}, {[]*kserve.ModelInstanceGroup{group(0)}, 8}, {[]*kserve.ModelInstanceGroup{group(3)}, 24},
		{[]*kserve.ModelInstanceGroup{group(1, 0, 1, 2, 3)}, 32}, {[]*kserve.ModelInstanceGroup{group(2, 0, 1), group(1)}, 40},
	} {
		if got := places(&kserve.ModelConfig{MaxBatchSize: 4, InstanceGroup: test.groups}); got != test.want {
			t.Errorf("%v: %d places, want %d", test.groups, got, test.want)
		}
	}
	r := launch(t, testSpec, testConfig, nil, func(s *tritontest.Server) {
		s.Models["small"].Config.InstanceGroup = []*kserve.ModelInstanceGroup{group(1, 0, 1)}
	})
	r.await(t, http.StatusOK)
	if w := r.models.list[0].window; w.places != 16 {
		t.Errorf("%d places for the two GPUs of which Triton tells", w.places)
	}
}
