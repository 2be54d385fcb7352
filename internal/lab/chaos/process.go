package chaos

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
)

// Processes starts engines as processes of their own: a command that serves the engine of the Spec, writes
// one line to its standard output that ends in its address, after the words "listens on", and ends in good
// order at SIGTERM.
func Processes(command func(Spec) *exec.Cmd) Launcher {
	return func(ctx context.Context, spec Spec) (Engine, error) {
		cmd := command(spec)
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, fmt.Errorf("start an engine: %w", err)
		}
		p := &process{cmd: cmd}
		defer context.AfterFunc(ctx, p.signal(syscall.SIGKILL))()
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if _, addr, ok := strings.Cut(lines.Text(), "listens on "); ok {
				p.addr = addr
				go io.Copy(io.Discard, out) //nolint:errcheck // It ends with the process.
				return p, nil
			}
		}
		err = errors.Join(lines.Err(), cmd.Wait(), ctx.Err())
		return nil, fmt.Errorf("an engine ended before it printed its address: %w", err)
	}
}

type process struct {
	cmd  *exec.Cmd
	addr string
}

func (p *process) Addr() string { return p.addr }

// signal returns a function that sends it; the process may have ended.
func (p *process) signal(s syscall.Signal) func() {
	return func() { _ = p.cmd.Process.Signal(s) }
}

func (p *process) end(s syscall.Signal) {
	p.signal(s)()
	p.signal(syscall.SIGCONT)() // a stopped one would never get it
	_ = p.cmd.Wait()            // killed, or as it pleased
}

func (p *process) Stop() { p.end(syscall.SIGTERM) }
func (p *process) Kill() { p.end(syscall.SIGKILL) }

func (p *process) Pause() bool { return p.cmd.Process.Signal(syscall.SIGSTOP) == nil }
func (p *process) Resume()     { p.signal(syscall.SIGCONT)() }
