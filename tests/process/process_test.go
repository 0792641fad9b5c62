package process

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// What two mappings share counts in each of them as resident, and once in proportion.
func TestSharedMemoryCountsOnceInPSS(t *testing.T) {
	const size = 32 << 20
	used := func() (rss, pss int) {
		t.Helper()
		rss, err := RSS(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if pss, err = PSS(os.Getpid()); err != nil {
			t.Fatal(err)
		}
		return rss, pss
	}
	fd, err := unix.MemfdCreate("shared", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	rss, pss := used()
	for range 2 {
		mapped, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Munmap(mapped) }()
	}
	moreRSS, morePSS := used()
	const slack = size / 4 // of the test itself
	if grown := moreRSS - rss; grown < 2*size-slack || grown > 2*size+slack {
		t.Errorf("RSS grew by %d bytes, want %d", grown, 2*size)
	}
	if grown := morePSS - pss; grown < size-slack || grown > size+slack {
		t.Errorf("PSS grew by %d bytes, want %d", grown, size)
	}
}
