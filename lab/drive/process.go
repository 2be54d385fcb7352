package drive

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"syscall"
	"time"
)

// A Process is a server in a process of its own, so that it can be killed and stopped as one. It belongs to one
// goroutine.
type Process struct {
	addr  string
	cmd   *exec.Cmd
	ended chan struct{}
}

var listensAt = regexp.MustCompile(`(?:serves .*|listens) on (\S+)$`)

// startWithin is how long a process may take until it listens.
const startWithin = 20 * time.Second

// StartProcess starts a command that prints one line on standard output that ends with "serves … on ADDRESS" or
// "listens on ADDRESS", and ends in good order at SIGTERM.
func StartProcess(ctx context.Context, command *exec.Cmd) (*Process, error) {
	p := &Process{cmd: command, ended: make(chan struct{})}
	out, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start a process: %w", err)
	}
	within, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	defer context.AfterFunc(within, func() { p.signal(syscall.SIGKILL) })()
	lines := bufio.NewScanner(out)
	var found []string
	for found == nil && lines.Scan() {
		found = listensAt.FindStringSubmatch(lines.Text())
	}
	go func() {
		_, _ = io.Copy(io.Discard, out)
		_ = command.Wait()
		close(p.ended)
	}()
	if found == nil {
		p.Kill()
		return nil, fmt.Errorf("a process ended before it printed its address: %w", errors.Join(lines.Err(), within.Err(),
			errors.New(command.ProcessState.String())))
	}
	p.addr = found[1]
	return p, nil
}

// Addr is where the process listens, also while it is dead.
func (p *Process) Addr() string { return p.addr }

// Stop ends the process with SIGTERM and waits until it is gone.
func (p *Process) Stop() { p.end(syscall.SIGTERM) }

// Kill ends the process at once, as a crash would, and waits until it is gone.
func (p *Process) Kill() { p.end(syscall.SIGKILL) }

// Pause freezes the process: it holds its connections and does nothing, until Resume. It returns false where that
// fails.
func (p *Process) Pause() bool { return p.cmd.Process.Signal(syscall.SIGSTOP) == nil }

// Resume ends a Pause.
func (p *Process) Resume() { p.signal(syscall.SIGCONT) }

func (p *Process) end(s syscall.Signal) {
	p.signal(s)
	p.Resume() // a paused one would never get it
	<-p.ended
}

// signal sends it to the process, which may have ended.
func (p *Process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }
