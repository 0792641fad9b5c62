package gateway

import (
	"container/list"
	"context"
	"hash/maphash"
	"sync"
)

// window bounds how many requests of one model are inside Triton at once. The
// others wait here, in order of arrival but in turns by slide, so that one
// cohort cannot starve a single tile. While the window is closed, because the
// model is being loaded again or Triton is starting, nobody is let through: a
// pause is better answered late than with an error.
//
// Waiting here instead of in Triton's queue keeps deadlines exact, drops callers
// who have gone before they cost the device anything, and leaves only what is
// inside Triton to fail when a backend dies. The gateway forms no batches: two
// full ones inside are enough for Triton's batcher never to lack one.
type window struct {
	seed maphash.Seed

	mu     sync.Mutex
	places int  // inside
	free   int  // of them; below zero while there are more inside than places
	closed bool // the model takes nothing now
	turns  *list.List
	slides map[uint64]*list.Element // of *slideQueue in turns
	count  int
}

// slideQueue is the requests of one slide that wait, the longest first. There is
// one only while there are any, so their number is bounded by the requests'.
type slideQueue struct {
	slide   uint64
	waiting *list.List // of *waiter
}

// waiter is a request that waits.
type waiter struct {
	slide   uint64
	present func() bool // whether its caller is still there
	turn    chan bool   // told once: true to go ahead, false when the caller is gone
	element *list.Element
}

func newWindow(places int) *window {
	return &window{seed: maphash.MakeSeed(), places: places, free: places, closed: true, turns: list.New(), slides: map[uint64]*list.Element{}}
}

// enter waits for a place. present is asked just before one is given. A request
// that was let in calls leave afterwards. The error is the context's, or
// [errCallerGone].
func (w *window) enter(ctx context.Context, slide []byte, present func() bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w.mu.Lock()
	if w.free > 0 && !w.closed && w.count == 0 {
		here := present()
		if here {
			w.free--
		}
		w.mu.Unlock()
		return goneUnless(here)
	}
	// Slides of one hash would share their turns, which harms nobody.
	me := &waiter{slide: maphash.Bytes(w.seed, slide), present: present, turn: make(chan bool, 1)}
	w.add(me)
	w.admit()
	w.mu.Unlock()
	select {
	case here := <-me.turn:
		return goneUnless(here)
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case here := <-me.turn: // at the same moment
		if here {
			w.free++
			w.admit()
		}
	default:
		w.remove(me)
	}
	return ctx.Err()
}

func goneUnless(here bool) error {
	if here {
		return nil
	}
	return errCallerGone
}

// leave gives a place back.
func (w *window) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.free++
	w.admit()
}

// open lets requests through from now on, or keeps them waiting.
func (w *window) open(yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = !yes
	w.admit()
}

// resize changes how many places there are.
func (w *window) resize(places int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.free += places - w.places
	w.places = places
	w.admit()
}

// size is how many requests may be inside.
func (w *window) size() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.places
}

// parked is the number of requests that wait.
func (w *window) parked() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

// windowState is how full a window is.
type windowState struct {
	Open   bool `json:"open"`
	Places int  `json:"places"`
	Inside int  `json:"inside"`
	Parked int  `json:"parked"`
}

func (w *window) state() windowState {
	w.mu.Lock()
	defer w.mu.Unlock()
	return windowState{Open: !w.closed, Places: w.places, Inside: w.places - w.free, Parked: w.count}
}

// inside is the number of requests that have a place.
func (w *window) inside() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.places - w.free
}

// admit gives the free places to those whose turn it is.
func (w *window) admit() {
	for w.free > 0 && !w.closed && w.count > 0 {
		turn := w.turns.Front()
		queue := turn.Value.(*slideQueue)
		next := queue.waiting.Front().Value.(*waiter)
		w.turns.MoveToBack(turn)
		w.remove(next)
		here := next.present()
		if here {
			w.free--
		}
		next.turn <- here
	}
}

func (w *window) add(me *waiter) {
	turn, ok := w.slides[me.slide]
	if !ok {
		turn = w.turns.PushBack(&slideQueue{me.slide, list.New()})
		w.slides[me.slide] = turn
	}
	me.element = turn.Value.(*slideQueue).waiting.PushBack(me)
	w.count++
}

func (w *window) remove(me *waiter) {
	turn := w.slides[me.slide]
	queue := turn.Value.(*slideQueue)
	queue.waiting.Remove(me.element)
	w.count--
	if queue.waiting.Len() == 0 {
		w.turns.Remove(turn)
		delete(w.slides, me.slide)
	}
}
