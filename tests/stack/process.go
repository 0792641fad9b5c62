package stack

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// PID is the gateway's process id.
func (s *Stack) PID() int { return s.cmd.Process.Pid }

// BackendPIDs are the process ids of a model's backend processes: children of the
// latest Triton whose command line names the model's folder.
func (s *Stack) BackendPIDs(model string) (pids []int) {
	triton := strconv.Itoa(s.TritonPID())
	processes, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well-formed
	for _, process := range processes {
		stat, _ := os.ReadFile(filepath.Join(process, "stat")) // empty when it has ended
		// Behind the name, which may hold anything: state, parent, ...
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		command, _ := os.ReadFile(filepath.Join(process, "cmdline"))
		if len(fields) > 1 && fields[1] == triton && strings.Contains(string(command), "/"+model+"/") {
			pid, _ := strconv.Atoi(filepath.Base(process))
			pids = append(pids, pid)
		}
	}
	return pids
}
