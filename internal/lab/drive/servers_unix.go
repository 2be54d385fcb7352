//go:build unix

package drive

import "syscall"

// Stop freezes the server: it holds its connections and does nothing, until Continue.
func (p *ServerProcess) Stop() error { return p.process.Process.Signal(syscall.SIGSTOP) }

// Continue ends a Stop.
func (p *ServerProcess) Continue() error { return p.process.Process.Signal(syscall.SIGCONT) }
