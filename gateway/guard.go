package gateway

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// GuardCommand is the argument with which the gateway's own binary is run to be
// a guard, in place of serving.
const GuardCommand = "guard"

const (
	// guardPatience is how long a command may take to stop once it was asked to.
	guardPatience = 5 * time.Second
	// guardDespair is how long one that was killed may take to be gone. A process that
	// a device's driver keeps in the kernel cannot be killed at all.
	guardDespair = time.Second
)

// Guard runs a command until it ends by itself or the standard input is closed,
// and then sees to it that nothing is left of its process group and of its shared
// memory, whose names begin with the given id. It writes the command's process
// id to the standard output and returns how the command ended. What others like it
// have left in shared memory, because they were killed themselves, it removes first.
//
// It is what stands between the gateway and its Triton, as a process of its own:
// its input closes when the gateway ends, however it ends, so that even one that
// was killed leaves no Triton and no backend process behind. The command is asked
// to stop (SIGTERM), and killed when that takes too long.
func Guard(id string, command []string) error {
	// If the guard itself is killed the kernel asks the command to stop, when
	// the thread ends that started it: so this one is kept.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Whoever stops a service signals all its processes, but the command is to be
	// stopped last, when the gateway says so. (Ignoring would be inherited.)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, os.Interrupt)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	removeLeftRegions(regionFolder)
	// Backends outlive a Triton that was killed by a second.
	defer time.AfterFunc(guardPatience, func() { removeLeftRegions(regionFolder) }).Stop()
	if lock, err := lockRegions(regionFolder, id); err == nil { // else Triton says what is wrong there
		defer lock.Close() //nolint:errcheck // nothing was written
		cmd.ExtraFiles = []*os.File{lock}
	}
	defer removeRegions(regionFolder, id)
	if err := cmd.Start(); err != nil {
		return err
	}
	// A backend's process can outlive a server that was killed.
	killGroup := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	defer killGroup()
	_, _ = fmt.Println(cmd.Process.Pid) // whoever reads it may be gone already
	ended := make(chan error, 2)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = cmd.Process.Signal(syscall.SIGTERM)
		time.Sleep(guardPatience)
		killGroup()
		time.Sleep(guardDespair)
		ended <- errors.New("it was killed and is not gone")
	}()
	go func() { ended <- cmd.Wait() }()
	if err := <-ended; err != nil {
		return err
	}
	return errors.New("exit status 0")
}
