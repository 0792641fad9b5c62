//go:build race

package prep

const raceDetector = true
