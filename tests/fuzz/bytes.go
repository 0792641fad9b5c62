package main

import (
	"bytes"
	"math/rand/v2"
)

type random = rand.Rand

// chance is true in one of n cases.
func chance(r *random, n int) bool { return r.IntN(n) == 0 }

// scribble changes 1 to most bytes of b in place, by a bit or altogether.
func scribble(b []byte, most int, r *random) {
	if len(b) == 0 {
		return
	}
	for range 1 + r.IntN(most) {
		at := r.IntN(len(b))
		switch r.IntN(4) {
		case 0:
			b[at] = byte(r.IntN(256))
		case 1:
			b[at] = []byte{0, 1, 0x7f, 0x80, 0xff}[r.IntN(5)]
		default:
			b[at] ^= 1 << r.IntN(8)
		}
	}
}

// cut drops the end of b, mostly a short one.
func cut(b []byte, r *random) []byte {
	n := r.IntN(len(b) + 1)
	if !chance(r, 3) {
		n = r.IntN(min(len(b), 40) + 1)
	}
	return b[:len(b)-n]
}

// noise is up to most random bytes.
func noise(most int, r *random) []byte {
	b := make([]byte, r.IntN(most+1))
	for i := range b {
		b[i] = byte(r.IntN(256))
	}
	return b
}

// shuffle drops, doubles, moves or inserts one of parts.
func shuffle[T any](parts []T, made T, r *random) []T {
	at := r.IntN(len(parts))
	switch r.IntN(4) {
	case 0:
		return append(parts[:at:at], parts[at+1:]...)
	case 1:
		return append(parts[:at+1:at+1], parts[at:]...)
	case 2:
		to := r.IntN(len(parts))
		parts[at], parts[to] = parts[to], parts[at]
		return parts
	default:
		return append(parts[:at:at], append([]T{made}, parts[at:]...)...)
	}
}

// rough changes bytes anywhere and repairs nothing.
func rough(data []byte, r *random) []byte {
	data = bytes.Clone(data)
	switch r.IntN(4) {
	case 0:
		return cut(data, r)
	case 1:
		return append(data, noise(50, r)...)
	case 2: // near the beginning, where the headers are
		scribble(data[:min(len(data), 300)], 3, r)
	default:
		scribble(data, 8, r)
	}
	return data
}
