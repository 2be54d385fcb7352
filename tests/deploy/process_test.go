package deploy

import (
	"bytes"
	"context"
	"io"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A process runs the command until the test ends.
type process struct {
	transcript // of both outputs

	out  transcript // standard output
	ctx  context.Context
	cmd  *exec.Cmd
	wait func() error
}

// run runs the command with the token of a cluster.
func (c *cluster) run(t *testing.T, args []string, token string) *process {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	p := &process{ctx: ctx, cmd: exec.CommandContext(ctx, build(t), args...)}
	p.cmd.Stdout, p.cmd.Stderr, p.wait = io.MultiWriter(&p.out, p), p, sync.OnceValue(p.cmd.Wait)
	if token != "" {
		kubeconfig, err := c.Kubeconfig(write(t, "token", token), namespace)
		require.NoError(t, err)
		p.cmd.Env = append(p.cmd.Environ(), "KUBECONFIG="+write(t, "kubeconfig", string(kubeconfig)))
	}
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { stop(); _ = p.wait() })
	return p
}

func (p *process) until(t *testing.T, what func() bool) {
	t.Helper()
	require.Eventually(t, what, 30*time.Second, 50*time.Millisecond, "%v", p)
}

// transcript is the output of a running process.
type transcript struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (s *transcript) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *transcript) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}
