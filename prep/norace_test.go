//go:build !race

package prep

// slowdown is how much longer things may take with what the tests are built with.
const slowdown = 1

// raceDetector tells whether the tests run under the race detector, where pools
// drop things at random and Go code is slow.
const raceDetector = false
