package repository

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestParseSM(t *testing.T) {
	for text, want := range map[string]int{"90": 90, "sm_90": 90, "sm_90a": 90, "9.0": 90, "sm_120": 120, "12.0": 120, "8.9": 89} {
		if sm, err := ParseSM(text); err != nil || sm != want {
			t.Errorf("%s is read as %d, %v", text, sm, err)
		}
	}
	for _, text := range []string{"", "9", "sm90", "hopper", "90.0", "1234"} {
		if sm, err := ParseSM(text); err == nil {
			t.Errorf("%q is read as %d", text, sm)
		}
	}
}

// What nvidia-smi says is the target where nothing else is. Where it does not tell, the
// target says why.
func TestFindTarget(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("PATH", folder)
	for _, test := range []struct {
		name, script, sm string
		want             string
	}{
		{"absent", "", "", "[]  nvidia-smi is not installed"},
		{"GPUs", "echo 8.9; echo 9.0; echo 8.9; echo '[N/A]'", "", "[89 90] nvidia-smi "},
		{"set", "echo 8.9", "sm_80", "[80] TARGET_SM "},
		{"no driver", "echo failed; exit 9", "", "[]  nvidia-smi failed: exit status 9"},
		{"no GPU", "echo '[N/A]'", "", "[] nvidia-smi nvidia-smi lists no SM version"},
	} {
		if test.script != "" {
			if err := os.WriteFile(filepath.Join(folder, "nvidia-smi"), []byte("#!/bin/sh\n"+test.script+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		target, err := FindTarget(t.Context(), test.sm)
		if got := fmt.Sprintf("%v %s %s", target.SMs, target.Source, target.Unknown); err != nil || got != test.want {
			t.Errorf("%s: %q, %v; want %q", test.name, got, err, test.want)
		}
	}
}

// A program that hangs is not waited for, nor is what it started and what holds its
// output.
func TestOutputIsBounded(t *testing.T) {
	began := time.Now()
	if text, err := output(t.Context(), 200*time.Millisecond, "/bin/sh", "-c", "sleep 20 & sleep 20"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%q, %v", text, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, cancel)
	if text, err := output(ended, time.Minute, "/bin/sh", "-c", "sleep 20 & sleep 20"); !errors.Is(err, context.Canceled) {
		t.Errorf("%q, %v", text, err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %s", took)
	}
	if text, err := output(t.Context(), time.Minute, "/bin/echo", "90"); err != nil || string(text) != "90\n" {
		t.Errorf("%q, %v", text, err)
	}
}
