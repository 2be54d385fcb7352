package real

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// run returns what a program prints on standard output, in the root of the repository.
func run(t *testing.T, c *exec.Cmd) string {
	t.Helper()
	c.Dir = "../.."
	var log strings.Builder
	c.Stderr = &log
	out, err := c.Output()
	require.NoError(t, err, "%v\n%s%s", c.Args, out, &log)
	return string(out)
}

// machineBusy is the command's exit code if the machine was too busy for valid times.
const machineBusy = 3

// The quickstart, the Python example and replay work with real engines as the docs write them.
func TestProgramsOfTheDocs(t *testing.T) {
	engines := shared(t)
	t.Run("quickstart", func(t *testing.T) {
		out := run(t, exec.CommandContext(t.Context(), "go", "run", "./examples/quickstart", target(engines)))
		require.Equal(t, 8, strings.Count(out, "\n"), out) // a line a token
	})
	t.Run("the Python example", func(t *testing.T) {
		addr := serve(t, engines)
		prompt := strings.Repeat("Why is the sky blue? ", 10)
		out := run(t, exec.CommandContext(t.Context(), requireEngines(t).program("python"), "examples/python/generate.py",
			"--server", addr, "--ask-timeout", "60", "--service", "VllmEngine", prompt, prompt))
		require.Equal(t, 2, strings.Count(out, "8 tokens"), out)
	})
	t.Run("replay", func(t *testing.T) {
		var trace strings.Builder
		for i := range 40 {
			fmt.Fprintf(&trace, `{"timestamp": %d, "input_length": 1500, "output_length": 8, "hash_ids": [%d, %d, %d]}`+"\n",
				50*i, i%4, 100+i%8, 1000+i)
		}
		path := filepath.Join(t.TempDir(), "trace.jsonl")
		require.NoError(t, os.WriteFile(path, []byte(trace.String()), 0o600))
		addresses := strings.TrimPrefix(target(engines), "warmpath:///")
		replay := warmpath(t, "replay", "--target", addresses, "--trace", path, "--format", "mooncake", "--json",
			"--policies", "round_robin,kv_aware")
		out, err := replay.Output()
		if replay.ProcessState.ExitCode() != machineBusy {
			require.NoError(t, err)
		}
		var result struct {
			Results []struct {
				Errors           int
				CachedTokenRatio float64 `json:"cached_token_ratio"`
			}
		}
		require.NoError(t, json.Unmarshal(out, &result))
		require.Len(t, result.Results, 2)
		for _, r := range result.Results {
			require.Zero(t, r.Errors)
			require.Positive(t, r.CachedTokenRatio)
		}
	})
}
