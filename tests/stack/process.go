package stack

import (
	"fmt"
	"os"
	"strings"

	"histogate/tests/process"
)

// PID is the gateway's process id.
func (s *Stack) PID() int { return s.cmd.Process.Pid }

// BackendPIDs are the process ids of a model's backend processes: children of the
// latest Triton whose command line names the model's folder.
func (s *Stack) BackendPIDs(model string) (pids []int) {
	children, _ := process.Children(s.TritonPID()) // it fails on a wrong pattern alone
	for _, pid := range children {
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // empty when it has ended
		if strings.Contains(string(command), "/"+model+"/") {
			pids = append(pids, pid)
		}
	}
	return pids
}
