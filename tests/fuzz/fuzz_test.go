package main

import "testing"

// TestMutants is a short run of the command: it fails on a disagreement with
// Pillow, or when too few mutants are accepted for that to mean anything.
func TestMutants(t *testing.T) {
	t.Chdir("../..")
	pass, err := run(options{n: 1500, only: -1, workers: 2, seed: 7, python: "build/tools/bin/python"})
	if err != nil {
		t.Fatal(err)
	}
	if !pass {
		t.Error("see above")
	}
}
