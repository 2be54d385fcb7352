package main

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A program with its own vLLM and SGLang stubs links and runs.
func TestOwnStubsLinkAndRun(t *testing.T) {
	program := filepath.Join(t.TempDir(), "ownstubs")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	printed, err := exec.CommandContext(t.Context(), program).Output()
	require.NoError(t, err)

	lines := strings.Split(strings.TrimSpace(string(printed)), "\n")
	require.Len(t, lines, 6)
	line := regexp.MustCompile(`^(vllm|sglang) (127\.0\.0\.1:\d+) (\S+) matched=(\d+) cached=(\d+) of (\d+)$`)
	var replica string
	for i, l := range lines {
		m := line.FindStringSubmatch(l)
		require.NotNil(t, m, l)
		require.Equal(t, []string{"vllm", "sglang"}[i/3], m[1])
		if i%3 == 0 { // a new prompt; the first replica in its order may not be connected yet
			replica = m[2]
			require.Contains(t, []string{"rendezvous", "rendezvous_spill"}, m[3])
			require.Equal(t, "0", m[5])
			continue
		}
		require.Equal(t, replica, m[2], "the next turn goes where the last one went")
		require.Equal(t, "prefix_match", m[3])
		require.NotEqual(t, "0", m[5])
	}
}
