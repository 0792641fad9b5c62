//go:build !race

package prep

// raceDetector tells whether the tests run under the race detector, where pools
// drop things at random and Go code is slow.
const raceDetector = false
