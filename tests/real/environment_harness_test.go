// Package real tests warmpath on vLLM itself: its scheduler, KV cache, events, gRPC servers, NIXL. Only the model's
// weights are random. .ci/engines installs what the tests run; without it they skip.
package real

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(suite{m}) }

// suite ends the engines after the tests, and removes the command.
type suite struct{ *testing.M }

func (s suite) Run() int {
	code := s.M.Run()
	endSet()
	theLauncher.close()
	_ = os.RemoveAll(commandDir) // nothing, if it is empty
	return code
}

// environment is the folder that .ci/engines prints.
type environment struct {
	dir string
	// model and adapter are the folders of the model and of a LoRA adapter for it.
	model, adapter string
	// headless is the path of the program engines/headless.py.
	headless string
}

// program returns the path of a program of the environment: python, vllm-rs, envoy, smg.
func (e environment) program(name string) string { return filepath.Join(e.dir, "venv", "bin", name) }

// found looks for the environment. One process at a time runs engines on a machine: the others wait here.
var found = sync.OnceValues(func() (environment, error) {
	requirements, err := hashOf("engines/requirements.txt")
	if err != nil {
		return environment{}, err
	}
	model, err := hashOf("engines/model.py")
	if err != nil {
		return environment{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return environment{}, err
	}
	e := environment{dir: filepath.Join(cache, "warmpath", "engines-"+requirements)}
	e.model = filepath.Join(e.dir, "model-"+model, "tiny")
	e.adapter = filepath.Join(e.dir, "model-"+model, "adapter")
	if e.headless, err = filepath.Abs("engines/headless.py"); err != nil {
		return environment{}, err
	}
	for _, path := range []string{filepath.Join(e.dir, "complete"), e.model} {
		if _, err := os.Stat(path); err != nil {
			return environment{}, err
		}
	}
	lock, err := os.Create(filepath.Join(e.dir, "running"))
	if err != nil {
		return environment{}, err
	}
	return e, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX) // until the process ends
})

func hashOf(path string) (string, error) {
	text, err := os.ReadFile(path)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:16], err
}

// requireEngines returns the environment, or skips the test.
func requireEngines(t testing.TB) environment {
	t.Helper()
	e, err := found()
	const missing = "real engines are not installed (%v): run .ci/engines, which downloads 3 GB once"
	if os.IsNotExist(err) && os.Getenv("WARMPATH_REQUIRE_ALL") == "" {
		t.Skipf(missing, err)
	}
	require.NoError(t, err, missing, err)
	return e
}
