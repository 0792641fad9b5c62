//go:build !race

package e2e

// raceEnabled tells whether the tests run under the race detector.
const raceEnabled = false
