package gateway

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// What was left by those who were killed is removed, and nothing else: neither what has
// a lock that somebody holds, if only a process that has inherited it, nor what is named
// almost alike.
func TestLeftRegions(t *testing.T) {
	folder := t.TempDir()
	names := func() (all []string) {
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			all = append(all, e.Name())
		}
		return all
	}
	lock := func(id string) *os.File {
		write(t, 0o600, "region", folder, id+"0a1b")
		file, err := lockRegions(folder, id)
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	const foreign = "histogate-LLLLLLLLLLLLLLLLLLLLLLLLLL"
	live, inherited := lock(newID()), lock(newID())
	defer live.Close()
	write(t, 0o600, "", folder, "histogate-tensors-"+newID()[len("histogate-"):])
	write(t, 0o600, "", folder, newID())                           // without a lock
	write(t, 0o600, "", folder, newID()+".lock.old")               // not a lock's name
	write(t, 0o600, "", folder, "histogate-short.lock")            // nor this
	write(t, 0o600, "", folder, "other-"+newID()+".lock")          // nor this
	elsewhere := write(t, 0o600, "", t.TempDir(), foreign+".lock") // no link is followed
	if err := os.Symlink(elsewhere, lockOf(folder, foreign)); err != nil {
		t.Fatal(err)
	}
	fifo := newID()
	if err := syscall.Mkfifo(lockOf(folder, fifo), 0o600); err != nil { // nobody waits for it
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(write(t, 0o600, "", lockOf(folder, newID())), 1, 1); err != nil { // another user's
			t.Fatal(err)
		}
	}
	// Another process has it open, and it alone.
	heir, err := syscall.Dup(int(inherited.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	inherited.Close()
	kept := names()

	for range 2 {
		_ = lock(newID()).Close() // as when it is killed
	}
	if left := names(); len(left) != len(kept)+4 {
		t.Fatalf("%q is there", left)
	}
	removeLeftRegions(folder)
	if left := names(); !slices.Equal(left, kept) {
		t.Errorf("%q is left, want %q", left, kept)
	}
	if err := syscall.Close(heir); err != nil {
		t.Fatal(err)
	}
	removeLeftRegions(folder)
	if left := names(); len(left) != len(kept)-2 {
		t.Errorf("without the heir %q is left, and was before %q", left, kept)
	}
}

// Of a guard that ends, with its Triton, nothing is left.
func TestRegionsOfAnEnd(t *testing.T) {
	folder, id := t.TempDir(), newID()
	lock, err := lockRegions(folder, id)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	write(t, 0o600, "region", folder, id+"0a1b")
	if other, err := lockRegions(filepath.Join(folder, "none"), id); err == nil {
		other.Close()
		t.Error("a lock was made in a folder that is not there")
	}
	removeRegions(folder, id)
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}
