package real

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/freeport"
)

// command builds the command once, in commandDir, which the end of the tests removes.
var (
	commandDir string
	command    = sync.OnceValues(func() (program string, err error) {
		if commandDir, err = os.MkdirTemp("", "warmpath-real"); err != nil {
			return "", err
		}
		out, err := exec.Command("go", "build", "-o", commandDir, "../../cmd/warmpath").CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
		return filepath.Join(commandDir, "warmpath"), nil
	})
)

// warmpath is the command with arguments, in the root of the repository.
func warmpath(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	program, err := command()
	require.NoError(t, err)
	c := exec.CommandContext(t.Context(), program, args...)
	c.Dir = "../.."
	return c
}

// serve runs warmpath serve for engines until the test ends, and returns its address. more is YAML of the deployment.
func serve(t testing.TB, engines []*engine, more ...string) string {
	t.Helper()
	var addresses []string
	for _, e := range engines {
		addresses = append(addresses, e.addr)
	}
	return serveAt(t, addresses, nil, more...)
}

// serveAt is serve for replicas at addresses, with flags.
func serveAt(t testing.TB, replicas, flags []string, more ...string) string {
	t.Helper()
	config := "deployments:\n  chat:\n    replicas:\n"
	for _, r := range replicas {
		config += fmt.Sprintf("    - {address: %q}\n", r)
	}
	for _, line := range more {
		config += "    " + line + "\n"
	}
	path := filepath.Join(t.TempDir(), "warmpath.yaml")
	require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
	addr := fmt.Sprint("127.0.0.1:", freeport.Find(1)[0])
	background(t, warmpath(t, append([]string{"serve", "--config", path, "--listen", addr}, flags...)...))
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", addr)
		return err == nil && conn.Close() == nil
	}, time.Minute, 10*time.Millisecond)
	return addr
}

// background runs a program until the test ends.
func background(t testing.TB, c *exec.Cmd) {
	t.Helper()
	var log strings.Builder
	c.Stdout, c.Stderr = &log, &log
	require.NoError(t, c.Start())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = c.Wait() }()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		<-ended
		if t.Failed() {
			t.Log(log.String())
		}
	})
}
