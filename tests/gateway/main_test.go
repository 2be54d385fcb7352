// Package gateway tests the endpoint picker behind a real Envoy, in front of model servers of the tests' own. Envoy is
// one of the programs that .ci/engines installs; without it the tests skip.
package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// programs is the folder of the command that the tests build.
var programs string

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if programs != "" {
			_ = os.RemoveAll(programs)
		}
		os.Exit(code)
	}))
}

const root = "../.."

// warmpath is the path of the command.
var warmpath = sync.OnceValues(func() (string, error) {
	var err error
	if programs, err = os.MkdirTemp("", "warmpath-gateway-"); err != nil {
		return "", err
	}
	path := filepath.Join(programs, "warmpath")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/warmpath")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.New(string(out))
	}
	return path, nil
})

// requireEnvoy returns the path of Envoy, or skips the test.
func requireEnvoy(t testing.TB) string {
	t.Helper()
	requirements, err := os.ReadFile("../real/engines/requirements.txt")
	sum := sha256.Sum256(requirements)
	cache, inCache := os.UserCacheDir()
	dir := filepath.Join(cache, "warmpath", "engines-"+hex.EncodeToString(sum[:])[:16])
	_, complete := os.Stat(filepath.Join(dir, "complete"))
	err = errors.Join(err, inCache, complete)
	const missing = "Envoy is not installed: run .ci/engines, which downloads 3 GB once"
	if err != nil && os.Getenv("WARMPATH_REQUIRE_ALL") == "" {
		t.Skip(missing)
	}
	require.NoError(t, err, missing)
	return filepath.Join(dir, "venv", "bin", "envoy")
}

// A process is a program that runs until the test ends, or until it is stopped.
type process struct {
	transcript

	cmd  *exec.Cmd
	wait func() error
}

func start(t testing.TB, path string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(path, args...)}
	p.cmd.Stdout, p.cmd.Stderr, p.wait = &p.transcript, &p.transcript, sync.OnceValue(p.cmd.Wait)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(path), p)
		}
	})
	return p
}

// kill ends the process at once.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.wait()
}

// has waits until the process has written a text.
func (p *process) has(t testing.TB, text string) {
	t.Helper()
	eventually(t, func() bool { return bytes.Contains(p.bytes(), []byte(text)) }, "%s", p)
}

// eventually waits for what takes time on a busy machine.
func eventually(t testing.TB, what func() bool, more ...any) {
	t.Helper()
	require.Eventually(t, what, time.Minute, 5*time.Millisecond, more...)
}

// transcript is the output of a running process.
type transcript struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

// Write implements [io.Writer].
func (s *transcript) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *transcript) bytes() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.text.Bytes())
}

// String implements [fmt.Stringer].
func (s *transcript) String() string { return string(s.bytes()) }
