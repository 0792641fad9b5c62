package gateway

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// What a Triton and its backends share in memory, their regions, are files there whose
// names begin with the Triton's id. A backend or a Triton that is killed leaves them; its
// guard removes them, unless it is killed too. So there is a lock beside them: a file,
// locked by whoever has it open, which are the guard, Triton and its backends. The next
// guard removes what has a lock that nobody holds.

// regionFolder is where POSIX shared memory has its names.
const regionFolder = "/dev/shm"

// newID is an id for a Triton, which no other one ever has.
func newID() string { return "histogate-" + rand.Text() }

// regionLock is the name of a lock: an id as newID makes it, and a suffix.
var regionLock = regexp.MustCompile(`^(histogate-[A-Z2-7]{26})\.lock$`)

func lockOf(folder, id string) string { return filepath.Join(folder, id+".lock") }

// lockRegions makes the lock of an id. It is held until the file is closed here and by
// everybody who has inherited it.
func lockRegions(folder, id string) (*os.File, error) {
	// Under its name it is never without a lock, or another guard could have it.
	unlocked := filepath.Join(folder, "."+id)
	file, err := os.OpenFile(unlocked, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
		err = os.Rename(unlocked, lockOf(folder, id))
	}
	if err != nil {
		_ = os.Remove(unlocked)
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// removeLeftRegions removes the regions of those who were killed, all of them.
func removeLeftRegions(folder string) {
	entries, _ := os.ReadDir(folder) // where it cannot be read there is nothing to remove
	for _, e := range entries {
		if name := regionLock.FindStringSubmatch(e.Name()); name != nil && e.Type().IsRegular() {
			removeIfLeft(folder, name[1])
		}
	}
}

func removeIfLeft(folder, id string) {
	lock, err := os.OpenFile(lockOf(folder, id), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return // it is another user's, or gone by now
	}
	defer lock.Close() //nolint:errcheck // nothing was written
	info, err := lock.Stat()
	if err != nil || !isOurs(info) || syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return
	}
	removeRegions(folder, id)
}

// removeRegions removes the regions of an id, which are nobody's any more, and then the
// lock: whoever is killed half-way leaves the rest to the next.
func removeRegions(folder, id string) {
	entries, _ := os.ReadDir(folder) // as above
	for _, e := range entries {
		path := filepath.Join(folder, e.Name())
		info, err := e.Info()
		if err == nil && strings.HasPrefix(e.Name(), id) && path != lockOf(folder, id) && isOurs(info) {
			_ = os.Remove(path) // it may be gone already
		}
	}
	_ = os.Remove(lockOf(folder, id))
}

// isOurs tells of a file that is one, and this user's: anybody can make others there.
func isOurs(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode().IsRegular() && int(stat.Uid) == os.Geteuid()
}
