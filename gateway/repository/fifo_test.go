package repository

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"histogate/gateway/checkpoint/checkpointtest"
	"histogate/prep"
	"histogate/tritonclient"
)

// A FIFO that nobody writes to, where a file is expected, is refused at once.
func TestFIFOsAreRefused(t *testing.T) {
	for name, read := range map[string]func(folder string) error{
		"m.pt2": func(folder string) error {
			_, err := inspect(&prep.Spec{Checkpoint: "m.pt2"}, &Options{ModelDir: folder})
			return err
		},
		"genes.csv": func(folder string) error {
			_, err := readLists(&prep.Spec{InputGenesFile: "genes.csv"}, folder)
			return err
		},
		"spec.yaml": func(folder string) error {
			_, err := readSpecs(filepath.Dir(folder), []string{filepath.Base(folder)})
			return err
		},
		"config.pbtxt": func(folder string) error {
			_, err := tritonclient.ReadModelConfig(filepath.Join(folder, "config.pbtxt"))
			return err
		},
	} {
		folder := t.TempDir()
		fifo := filepath.Join(folder, name)
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		refused := make(chan error, 1)
		go func() { refused <- read(folder) }()
		select {
		case err := <-refused:
			if err == nil || !strings.Contains(err.Error(), "not a regular file") {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s is waited for", name)
			if w, err := os.OpenFile(fifo, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
				_ = w.Close() // whoever waits goes on
			}
		}
	}
	// What is no FIFO is read, for all that it is opened without blocking.
	folder := t.TempDir()
	checkpointtest.Package{}.Write(t, filepath.Join(folder, "m.pt2"))
	if _, err := inspect(&prep.Spec{Checkpoint: "m.pt2"}, &Options{ModelDir: folder}); err != nil && strings.Contains(err.Error(), "regular") {
		t.Error(err)
	}
}
