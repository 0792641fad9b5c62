//go:build race

package prep

// slowdown is how much longer things may take with what the tests are built with.
const slowdown = 10

const raceDetector = true
