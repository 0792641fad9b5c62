package tritonclient

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// inMemory is a folder in shared memory.
func inMemory(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp(sharedMemory, "histogate-test-") //nolint:usetesting // t.TempDir is on a disk
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	return folder
}

func testSegment(t *testing.T, folder string, size, most int) *segment {
	t.Helper()
	s, err := newSegment(folder, 0o600, size, most, time.Minute, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.close(false) })
	return s
}

func take(t *testing.T, s *segment, want int) {
	t.Helper()
	if slot, ok := s.take(); !ok || slot != want {
		t.Fatalf("got slot %d, %v, want %d", slot, ok, want)
	}
}

func takeNone(t *testing.T, s *segment) {
	t.Helper()
	if slot, ok := s.take(); ok {
		t.Fatalf("got slot %d, want none", slot)
	}
}

// The slot that was given back last is the next, and memory is there for no more
// slots than were ever in use at once.
func TestSlots(t *testing.T) {
	const size = 1 << 20
	s := testSegment(t, inMemory(t), size-1, 3)
	take(t, s, 0)
	take(t, s, 1)
	s.give(0, true)
	take(t, s, 0)
	s.give(1, true)
	s.give(0, true)
	take(t, s, 0)
	take(t, s, 1)
	var info syscall.Stat_t
	if err := syscall.Fstat(int(s.file.Fd()), &info); err != nil {
		t.Fatal(err)
	}
	if used := info.Blocks * 512; info.Size != 3*size || used < 2*size || used > 2*size+1<<16 {
		t.Errorf("a file of %d bytes with %d in use, want %d with %d", info.Size, used, 3*size, 2*size)
	}
	take(t, s, 2)
	takeNone(t, s)
	copy(s.data(1), bytes.Repeat([]byte{1}, size))
	copy(s.data(2), bytes.Repeat([]byte{2}, size))
	if s.data(1)[size-1] != 1 || s.data(2)[0] != 2 || len(s.data(0)) != size {
		t.Error("slots overlap")
	}
}

// A slot whose call ended early is not used before the server cannot read it any more.
func TestSlotsThatEndedEarlyAreLeftAlone(t *testing.T) {
	folder := inMemory(t)
	synctest.Test(t, func(t *testing.T) {
		s := testSegment(t, folder, 64, 2)
		take(t, s, 0)
		s.give(0, false)
		take(t, s, 1)
		takeNone(t, s)
		time.Sleep(s.settle - time.Millisecond)
		takeNone(t, s)
		time.Sleep(2 * time.Millisecond)
		take(t, s, 0)
		s.give(1, false)
		takeNone(t, s)
		s.forgotten() // by a server that was started anew
		take(t, s, 1)
	})
}

// The last call to give its slot back finds its memory still there.
func TestSegmentIsClosedUnderACall(t *testing.T) {
	s := testSegment(t, inMemory(t), 64, 2)
	take(t, s, 0)
	s.close(false)
	if _, err := os.Stat(s.path); !os.IsNotExist(err) {
		t.Errorf("the file: %v", err)
	}
	takeNone(t, s)
	copy(s.data(0), "still there")
	s.give(0, true)
	if s.bytes != nil {
		t.Error("the memory is never given back")
	}
}

// Memory that is full shows as a request without a slot, never as a fault.
func TestSegmentInAFullFileSystem(t *testing.T) {
	folder := t.TempDir()
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(folder, 0); err != nil {
			t.Error(err)
		}
	})
	var log bytes.Buffer
	for name, c := range map[string]struct {
		slot, others int // bytes
		want         int // slots
		says         string
	}{
		"half of it is others'": {slot: 100 << 10, want: 5, says: "more than half full"},
		"no room for a slot":    {slot: 600 << 10, want: 0, says: "more than half full"},
		"others have the half":  {slot: 100 << 10, others: 512 << 10, want: 0, says: "more than half full"},
	} {
		t.Run(name, func(t *testing.T) {
			log.Reset()
			if err := os.WriteFile(filepath.Join(folder, "others"), make([]byte, c.others), 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := newSegment(folder, 0o600, c.slot, 100, time.Minute, slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			defer s.close(false)
			got := 0
			for {
				slot, ok := s.take()
				if !ok {
					break
				}
				defer s.give(slot, true)
				fill := s.data(slot)
				for i := range fill {
					fill[i] = 1 // a page without memory would fault
				}
				got++
			}
			takeNone(t, s)
			if got != c.want {
				t.Errorf("%d slots, want %d", got, c.want)
			}
			if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), c.says) {
				t.Errorf("the log is %q, want one line with %q", &log, c.says)
			}
		})
	}
	// Somebody else is quicker than the look at how full it is.
	if err := os.WriteFile(filepath.Join(folder, "others"), make([]byte, 1000<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	s := testSegment(t, folder, 100<<10, 2)
	takeNone(t, s)
	if err := os.Remove(filepath.Join(folder, "others")); err != nil {
		t.Fatal(err)
	}
	takeNone(t, s) // it is not tried at each request
	s.full = s.full.Add(-fullFor)
	if slot, ok := s.take(); !ok {
		t.Error("there is room again, and it is not taken")
	} else {
		s.give(slot, true)
	}
	if made, most := s.slots(); made != 1 || most != 2 {
		t.Errorf("%d of %d slots", made, most)
	}
	if err := os.WriteFile(filepath.Join(folder, "others"), make([]byte, 900<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Fallocate(int(s.file.Fd()), 0, int64(s.size), int64(s.size)); err != syscall.ENOSPC {
		t.Errorf("got %v, want that there is no space", err)
	}
}

// Segments are removed when nobody holds them, and only those.
func TestRemoveSegments(t *testing.T) {
	folder := t.TempDir()
	living := testSegment(t, folder, 64, 1)
	var dead []string
	for range 2 {
		s := testSegment(t, folder, 64, 1)
		s.close(true) // as the end of a process would: without its lock
		dead = append(dead, s.name)
	}
	other := filepath.Join(folder, "histogate-other")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	removed := removeSegments(folder)
	if len(removed) != 2 || !strings.Contains(strings.Join(dead, " "), removed[0]) || !strings.Contains(strings.Join(dead, " "), removed[1]) {
		t.Errorf("removed %v, want %v", removed, dead)
	}
	for path, want := range map[string]bool{living.path: true, other: true, filepath.Join(folder, dead[0]): false, filepath.Join(folder, dead[1]): false} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v", filepath.Base(path), err)
		}
	}
	if again := removeSegments(folder); again != nil {
		t.Errorf("removed %v", again)
	}
}

// Others may have to open a segment, whatever this process's umask is.
func TestSegmentMode(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	for _, mode := range []os.FileMode{0o600, 0o666} {
		s, err := newSegment(t.TempDir(), mode, 64, 1, time.Minute, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer s.close(false)
		if info, err := os.Stat(s.path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%v, %v, want %v", info.Mode(), err, mode)
		}
	}
	if _, err := newSegment(filepath.Join(t.TempDir(), "none"), 0o600, 64, 1, time.Minute, nil); !os.IsNotExist(err) {
		t.Errorf("without a folder: %v", err)
	}
}

// Whether all that is to be shared has room is told without taking any.
func TestCheckSharedMemory(t *testing.T) {
	of := func(requests int, shapes ...int64) SharedInputs {
		s := SharedInputs{Requests: requests}
		for _, size := range shapes {
			s.Inputs = append(s.Inputs, TensorSpec{Datatype: Float32, Shape: []int64{1, size}})
		}
		return s
	}
	all := []SharedInputs{of(3, 16, 1), of(1, 1<<20)} // 3 x 2 lines of cache, and 4 MB
	const need = 3*2*cacheLine + 4<<20
	if err := fits(all, need); err != nil {
		t.Errorf("as much as is needed: %v", err)
	}
	for _, spare := range []int64{need - 1, -1} {
		if err := fits(all, spare); err == nil || !strings.Contains(err.Error(), "can take 5 MB; give it ") {
			t.Errorf("%d bytes: %v", spare, err)
		}
	}
	if err := CheckSharedMemory([]SharedInputs{of(1, 1)}); err != nil {
		t.Error(err)
	}
	if err := CheckSharedMemory([]SharedInputs{of(1<<20, 1<<30)}); err == nil {
		t.Error("a petabyte has room")
	}
	half := &syscall.Statfs_t{Bsize: 10, Blocks: 100, Bavail: 60}
	if got := spare(half); got != 100 {
		t.Errorf("of 1000 bytes, 600 of them free, %d are to spare", got)
	}
	if got := spare(&syscall.Statfs_t{Bsize: 10}); got < 1<<60 {
		t.Errorf("of what has no bound %d bytes are to spare", got)
	}
}
