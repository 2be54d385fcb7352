package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The simulated engines are separate processes: their stubs and this program's have the same proto names.
func TestDisaggregated(t *testing.T) {
	command := filepath.Join(t.TempDir(), "warmpath")
	built, err := exec.CommandContext(t.Context(), "go", "build", "-o", command, "../../cmd/warmpath").CombinedOutput()
	require.NoError(t, err, "%s", built)
	for file, connector := range map[string]string{"vllm.yaml": "nixl", "sglang.yaml": "rooms"} {
		t.Run(file, func(t *testing.T) {
			fleet, err := os.ReadFile(file)
			require.NoError(t, err)
			addr, bootstrap := engine(t, command, "prefill", connector)
			replace := []string{"127.0.0.1:50051", addr, "127.0.0.1:8998", bootstrap}
			for _, was := range []string{"127.0.0.1:50052", "127.0.0.1:50053"} {
				addr, _ := engine(t, command, "decode", connector)
				replace = append(replace, was, addr)
			}
			path := filepath.Join(t.TempDir(), file)
			require.NoError(t, os.WriteFile(path, []byte(strings.NewReplacer(replace...).Replace(string(fleet))), 0o600))
			var out bytes.Buffer
			require.NoError(t, run(t.Context(), path, &out), "%s", &out)
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			require.Len(t, lines, requests)
			split := strings.Count(out.String(), ": prefill on prefill-0, decode on decode-")
			if connector == "rooms" {
				require.Equal(t, requests, split, "%s", &out)
			}
			require.Equal(t, requests, split+strings.Count(out.String(), ": whole on decode-"), "%s", &out)
			t.Logf("%d of %d were split", split, requests)
		})
	}
}

var listens = regexp.MustCompile(`listens on (\S+)\n.*bootstrap address (\S+),`)

// engine starts a simulated engine and returns its addresses.
func engine(t *testing.T, command, role, connector string) (addr, bootstrap string) {
	e := exec.CommandContext(t.Context(), command, "engine", "--listen", "127.0.0.1:0", "--role", role,
		"--kv-connector", connector, "--speed", "20")
	out, err := e.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, e.Start())
	t.Cleanup(func() { _ = e.Wait() }) // killed when the test's context ends
	var printed string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		printed += lines.Text() + "\n"
		if found := listens.FindStringSubmatch(printed); found != nil {
			return found[1], found[2]
		}
	}
	t.Fatalf("the engine ended: %s", printed)
	return "", ""
}
