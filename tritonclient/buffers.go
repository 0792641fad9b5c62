package tritonclient

import (
	"math/bits"
	"sync"
)

// Buffers is a pool of memory, such as messages are sent from. gRPC counts who still
// reads a buffer, its write queue above all, and puts it back after the last; one
// whose connection broke may never come back, and is the garbage collector's. The zero
// value is an empty pool.
//
// Sizes are rounded up by an eighth at most, from 16 bytes on. The pool of gRPC itself
// would round those of a tile's message, 602 KB, up to a megabyte.
type Buffers struct {
	classes [8*bits.UintSize + 16]sync.Pool // of *[]byte
}

// class is the number of a size's class, and the largest size of it.
func class(size int) (number, most int) {
	shift := max(bits.Len(uint(size-1))-4, 0)
	eighths := (size + 1<<shift - 1) >> shift // from 9 to 16, but for the first sizes
	return 8*shift + eighths, eighths << shift
}

// Get implements [mem.BufferPool]: memory for a message of at least one byte.
func (p *Buffers) Get(size int) *[]byte {
	number, most := class(size)
	buffer, ok := p.classes[number].Get().(*[]byte)
	if !ok {
		b := make([]byte, most)
		buffer = &b
	}
	*buffer = (*buffer)[:size]
	return buffer
}

// Put implements [mem.BufferPool].
func (p *Buffers) Put(buffer *[]byte) {
	number, _ := class(cap(*buffer))
	p.classes[number].Put(buffer)
}
