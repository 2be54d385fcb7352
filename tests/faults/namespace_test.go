//go:build linux

package faults

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// ownNetwork in the environment marks a process in its own network namespace.
const ownNetwork = "WARMPATH_TEST_NETWORK"

// alone runs a test again, in a process with its own network, and reports whether this is that process. Its links,
// addresses and rules are separate from the machine's, and end with it. If the machine does not allow this, the test
// is skipped.
func alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(ownNetwork) != "" {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("network namespaces take root")
	}
	for _, program := range []string{"ip", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("WARMPATH_REQUIRE_ALL") != "" {
				t.Fatalf("%s is not installed: %v", program, err)
			}
			t.Skipf("%s is not installed: %v", program, err)
		}
	}
	// What runs in parallel there mostly waits, on few cores too.
	cmd := again(t, ownNetwork+"=1", "-test.run", "^"+t.Name()+"$", "-test.timeout", "5m", "-test.parallel", "16")
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) {
		t.Skipf("this machine allows no network namespaces: %v", err)
	}
	require.NoError(t, err, "%s", out)
	return false
}

// again is this binary in its own network namespace, which ends with the binary, and both end with this process.
func again(t *testing.T, env string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// run runs a command that must succeed.
func run(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), out)
}

// host is a replica on its own host: a process in a network namespace, at the far end of a link.
type host struct {
	n   int
	cmd *exec.Cmd
}

// subnet is a host's link: .1 on our side, .2 on its.
func (h *host) subnet() string  { return fmt.Sprintf("10.77.%d.", h.n) }
func (h *host) link() string    { return fmt.Sprintf("host%d", h.n) }
func (h *host) ip() string      { return h.subnet() + "2" }
func (h *host) address() string { return h.ip() + ":" + servicePort }

const servicePort = "7000"

// boot starts the host's process and connects the link, until it dies or the test ends.
func (h *host) boot(t *testing.T) {
	t.Helper()
	h.cmd = again(t, replicaAt+"=:"+servicePort)
	out, err := h.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, h.cmd.Start())
	t.Cleanup(h.die)
	require.True(t, bufio.NewScanner(out).Scan(), "the replica did not start")
	pid := strconv.Itoa(h.cmd.Process.Pid)
	inside := func(args ...string) { run(t, "nsenter", append([]string{"--target", pid, "--net", "ip"}, args...)...) }
	run(t, "ip", "link", "add", h.link(), "type", "veth", "peer", "name", "eth0", "netns", pid)
	run(t, "ip", "address", "add", h.subnet()+"1/24", "dev", h.link())
	inside("address", "add", h.ip()+"/24", "dev", "eth0")
	inside("link", "set", "eth0", "up")
	run(t, "ip", "link", "set", h.link(), "up")
}

// die removes the link and then ends the host, so that its clients get no notice.
func (h *host) die() {
	if h.cmd == nil {
		return
	}
	// The kernel would remove the link only later, after the end of its namespace.
	_ = exec.Command("ip", "link", "delete", h.link()).Run()
	_ = h.cmd.Process.Kill() // the process may have ended already
	_ = h.cmd.Wait()
	h.cmd = nil
}
