package tritonclient

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// segmentPrefix begins the name of every segment, so that those of a process that
	// was killed are found.
	segmentPrefix = "histogate-tensors-"
	// cacheLine is where each tensor in a slot begins.
	cacheLine = 64
	// fullFor is how long no slot is given memory after one could not be: others may have
	// given theirs back by then.
	fullFor = 5 * time.Second
)

// segment is a file in shared memory, cut into slots, that the server maps. A slot
// holds the inputs of one request from before it is sent until it is answered.
//
// A slot is given memory when it is first used, and the one that was given back last
// is used first: a process with little to do touches few pages.
//
// Whoever made a segment holds a lock on its file for as long as it lives; process
// ids would tell nothing across containers. The file is removed at the end, or by the
// next process that finds it without a lock.
type segment struct {
	name   string // of the file, and of the region that it is registered as
	path   string
	file   *os.File
	bytes  []byte        // of all slots
	size   int           // of a slot
	most   int           // slots
	settle time.Duration // how long a slot whose call ended early is left alone
	log    *slog.Logger

	registered atomic.Bool // the server knows it

	mu     sync.Mutex
	made   int          // slots that have memory
	free   []int        // the last is the next to be used
	early  []endedEarly // the oldest first
	inUse  int
	full   time.Time // no further slot could be given memory then; zero when one could
	closed bool
}

// endedEarly is a slot that a server may still read.
type endedEarly struct {
	slot  int
	until time.Time
}

// newSegment makes a segment in the folder of a file system in memory, such as
// /dev/shm. Its pages cost nothing before they are used.
func newSegment(folder string, mode os.FileMode, size, most int, settle time.Duration, log *slog.Logger) (_ *segment, err error) {
	s := &segment{name: segmentPrefix + rand.Text(), size: aligned(size), most: most, settle: settle, log: log}
	s.path = filepath.Join(folder, s.name)
	// Under its name it is never without a lock.
	unlocked := filepath.Join(folder, "."+s.name)
	if s.file, err = os.OpenFile(unlocked, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode); err != nil {
		return nil, err
	}
	err = errors.Join(
		syscall.Flock(int(s.file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB),
		s.file.Chmod(mode), // whatever the umask is
		s.file.Truncate(int64(s.size*most)),
	)
	if err == nil {
		s.bytes, err = syscall.Mmap(int(s.file.Fd()), 0, s.size*most, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	}
	if err == nil {
		err = os.Rename(unlocked, s.path)
	}
	if err != nil {
		_ = os.Remove(unlocked)
		s.discard()
		return nil, err
	}
	return s, nil
}

func aligned(size int) int { return (size + cacheLine - 1) / cacheLine * cacheLine }

// take gives a slot to a call; false when there is none. What it holds is left over.
func (s *segment) take() (slot int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch last := len(s.free) - 1; {
	case s.closed:
		return 0, false
	case last >= 0:
		slot, s.free = s.free[last], s.free[:last]
	case len(s.early) > 0 && time.Now().After(s.early[0].until):
		slot, s.early = s.early[0].slot, s.early[1:]
	case s.made < s.most && time.Since(s.full) >= fullFor:
		if err := s.allocate(s.made); err != nil {
			if s.full.IsZero() { // else it has been said
				s.log.Warn("there is no more shared memory for tensors; what finds none goes in messages", "requests", s.made, "error", err)
			}
			s.full = time.Now()
			return 0, false
		}
		slot, s.full = s.made, time.Time{}
		s.made++
	default:
		return 0, false
	}
	s.inUse++
	return slot, true
}

// allocate gives a slot its memory. Without that, memory that is full would show as
// a SIGBUS at the first write.
func (s *segment) allocate(slot int) error {
	var fs syscall.Statfs_t
	if err := syscall.Fstatfs(int(s.file.Fd()), &fs); err != nil {
		return err
	}
	if int64(s.size) > spare(&fs) {
		return fmt.Errorf("%s would be more than half full; give it more, with --shm-size for a container", filepath.Dir(s.path))
	}
	for {
		err := syscall.Fallocate(int(s.file.Fd()), 0, int64(slot*s.size), int64(s.size))
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// spare is how many bytes of a file system in memory may be taken. Half of it is left to
// others: Triton's own backends move tensors through it, and fail where there is no room.
func spare(fs *syscall.Statfs_t) int64 {
	if fs.Blocks == 0 {
		return math.MaxInt64 // it has no bound
	}
	return int64(fs.Bavail)*fs.Bsize - int64(fs.Blocks)*fs.Bsize/2
}

// slots are how many have memory, and how many there can be.
func (s *segment) slots() (made, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made, s.most
}

// give takes a slot back. One whose call ended before it was answered is left alone
// for a time: the server may still read it.
func (s *segment) give(slot int, answered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if answered {
		s.free = append(s.free, slot)
	} else {
		s.early = append(s.early, endedEarly{slot, time.Now().Add(s.settle)})
	}
	s.inUse--
	s.unmap()
}

// forgotten is called when the server turns out to be another one, which has read
// nothing yet.
func (s *segment) forgotten() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.early {
		s.free = append(s.free, e.slot)
	}
	s.early = nil
}

// data is a slot's memory.
func (s *segment) data(slot int) []byte { return s.bytes[slot*s.size:][:s.size:s.size] }

// close ends the use of the segment, at once or when the last call has given its
// slot back. The file stays where keep is set, for another process to remove.
func (s *segment) close(keep bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if !keep {
		_ = os.Remove(s.path)
	}
	_ = s.file.Close()
	s.unmap()
}

// unmap gives the memory back once nobody can write to it any more.
func (s *segment) unmap() {
	if s.closed && s.inUse == 0 && s.bytes != nil {
		_ = syscall.Munmap(s.bytes)
		s.bytes = nil
	}
}

// discard undoes a segment that could not be made.
func (s *segment) discard() {
	s.closed = true
	_ = s.file.Close()
	s.unmap()
}

// removeSegments removes the segments in a folder whose makers are gone and returns
// their names.
func removeSegments(folder string) (names []string) {
	paths, _ := filepath.Glob(filepath.Join(folder, segmentPrefix+"*")) // the pattern is sound
	for _, path := range paths {
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			continue // another's, who may remove it
		}
		if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil && os.Remove(path) == nil {
			names = append(names, filepath.Base(path))
		}
		_ = file.Close()
	}
	return names
}
