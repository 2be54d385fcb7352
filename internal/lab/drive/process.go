package drive

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"time"
)

// A Process is a server in a process of its own, so that it can be killed and stopped as one. It belongs to one
// goroutine.
type Process struct {
	command func(listen string) *exec.Cmd
	addr    string
	cmd     *exec.Cmd
	ended   chan struct{}
}

// StartProcess starts a command that listens on the address given, prints one line on standard output that ends with
// "serves … on ADDRESS" or "listens on ADDRESS", and ends in good order at SIGTERM.
func StartProcess(ctx context.Context, command func(listen string) *exec.Cmd) (*Process, error) {
	p := &Process{command: command, addr: "127.0.0.1:0"}
	return p, p.Restart(ctx)
}

var listensAt = regexp.MustCompile(`(?:serves .*|listens) on (\S+)$`)

// startWithin is how long a process may take until it listens.
const startWithin = 20 * time.Second

// Restart starts the process again, at the same address, after Kill or Stop.
func (p *Process) Restart(ctx context.Context) error {
	p.cmd = p.command(p.addr)
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("start a process: %w", err)
	}
	within, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	defer context.AfterFunc(within, p.signal(syscall.SIGKILL))()
	p.ended = make(chan struct{})
	lines, cmd, ended := bufio.NewScanner(out), p.cmd, p.ended
	var found []string
	for found == nil && lines.Scan() {
		found = listensAt.FindStringSubmatch(lines.Text())
	}
	go func() {
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
		close(ended)
	}()
	if found == nil {
		p.Kill()
		return fmt.Errorf("a process ended before it printed its address: %w", errors.Join(lines.Err(), within.Err(),
			errors.New(cmd.ProcessState.String())))
	}
	p.addr = found[1]
	return nil
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
func (p *Process) Resume() { p.signal(syscall.SIGCONT)() }

func (p *Process) end(s syscall.Signal) {
	p.signal(s)()
	p.Resume() // a paused one would never get it
	<-p.ended
}

// signal returns a function that sends it; the process may have ended.
func (p *Process) signal(s syscall.Signal) func() {
	process := p.cmd.Process
	return func() { _ = process.Signal(s) }
}

// A Cable is the network between one client and the look-aside servers. Safe for use by many goroutines; the zero value
// is plugged in.
type Cable struct {
	mu    sync.Mutex // guards what follows
	cut   bool
	conns []net.Conn
}

var errCut = errors.New("the cable is cut")

// Dial connects, for grpc.WithContextDialer.
func (c *Cable) Dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		_ = conn.Close()
		return nil, errCut
	}
	c.conns = append(c.conns, conn)
	return conn, nil
}

// Cut ends all connections, and no others come until Mend.
func (c *Cable) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = true
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

// Mend ends the cut.
func (c *Cable) Mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = false
}
