//go:build !race

package raster

// slowdown is how much longer things may take with what the tests are built with.
const slowdown = 1
