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
	"time"
)

// A ServerProcess is a look-aside server in a process of its own, so that it can be killed and stopped as
// one. It belongs to one goroutine.
type ServerProcess struct {
	command []string
	config  string
	address string
	log     io.Writer

	process *exec.Cmd
	ended   chan struct{}
}

// StartServer runs a command, `warmpath serve` as a rule, with a config file, on a port of its own choice.
// Its log goes to log.
func StartServer(ctx context.Context, command []string, config string, log io.Writer) (*ServerProcess, error) {
	p := &ServerProcess{command: command, config: config, address: "127.0.0.1:0", log: log}
	return p, p.Restart(ctx)
}

// Address is where the server listens, also while it is dead.
func (p *ServerProcess) Address() string { return p.address }

var servesOn = regexp.MustCompile(` on (\S+)\n$`)

// startWithin is how long a server may take to serve.
const startWithin = 20 * time.Second

// Restart starts the server again, at the same address, after Kill.
func (p *ServerProcess) Restart(ctx context.Context) error {
	args := append(p.command[1:len(p.command):len(p.command)], "--config", p.config, "--listen", p.address)
	p.process = exec.CommandContext(context.WithoutCancel(ctx), p.command[0], args...) // Kill ends it
	p.process.Stderr = p.log
	out, err := p.process.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start a look-aside server: %w", err)
	}
	if err := p.process.Start(); err != nil {
		return fmt.Errorf("start a look-aside server: %w", err)
	}
	p.ended = make(chan struct{})
	late := time.AfterFunc(startWithin, func() { _ = p.process.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	late.Stop()
	process, ended := p.process, p.ended
	go func() {
		_, _ = io.Copy(io.Discard, out)
		_ = process.Wait()
		close(ended)
	}()
	found := servesOn.FindStringSubmatch(line)
	if err != nil || found == nil {
		p.Kill()
		return fmt.Errorf("start a look-aside server: it does not serve: %q", line)
	}
	p.address = found[1]
	return nil
}

// Kill ends the server at once, as a crash would, and waits until it is gone.
func (p *ServerProcess) Kill() {
	_ = p.process.Process.Kill()
	<-p.ended
}

// A Cable is the network between one client and the look-aside servers. Safe for use by many goroutines; the zero value
// is plugged in.
type Cable struct {
	mu    sync.Mutex // guards what follows
	cut   bool
	conns map[net.Conn]struct{}
}

var errCut = errors.New("the cable is cut")

// Dial connects, for grpc.WithContextDialer.
func (c *Cable) Dial(ctx context.Context, address string) (net.Conn, error) {
	c.mu.Lock()
	cut := c.cut
	c.mu.Unlock()
	if cut {
		return nil, errCut
	}
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
	if c.conns == nil {
		c.conns = make(map[net.Conn]struct{})
	}
	c.conns[conn] = struct{}{}
	return conn, nil
}

// Cut ends all connections, and no others come until Mend.
func (c *Cable) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = true
	for conn := range c.conns {
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
