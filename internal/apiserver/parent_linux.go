package apiserver

import (
	"os/exec"
	"syscall"
)

// endWithParent lets the kernel end a program when the process that started it is gone.
func endWithParent(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
