package launch

import (
	"os/exec"
	"syscall"
)

// endWithThis has the kernel kill a process when the thread that starts it ends, as it does when
// this process is killed; see prctl(2), PR_SET_PDEATHSIG. What the process has started is not
// killed.
func endWithThis(cmd *exec.Cmd) { cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL }
