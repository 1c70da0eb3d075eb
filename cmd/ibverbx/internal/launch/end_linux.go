package launch

import (
	"os/exec"
	"syscall"
)

// endWithThis makes the kernel kill a process when the thread that starts it ends, as when this
// process is killed; see prctl(2), PR_SET_PDEATHSIG. Children of the process are not killed.
func endWithThis(cmd *exec.Cmd) { cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL }
