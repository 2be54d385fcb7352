package tests

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var loopback = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// absentTrace stands for the reader's own.
const absentTrace = "trace.jsonl"

// A shell block may hold
//
//	go run ./cmd/warmpath …   run as it stands, but a demo without --duration gets 2s. Capacities
//	                          are remembered for the test only. A sim of several seeds runs one, for 6m
//	… sim --trace trace.jsonl …  run as well, but there is no such file: it must find fault with nothing else
//	go run ./examples/…       run as it stands
//	… &                       either, running until the block ends; the next line begins
//	                          when the address in it answers
//	grpcurl …                 run as it stands, without blanks between quotes. It is built where everything is
//	                          required, else passed over unless it is installed
//	docker, kind, kubectl     not run: tests/deploy tries what they name, and runs CGO_ENABLED=0 go build …
//	go test work              not run: it is what is running
//	go test … -bench …        not run: it must name benchmarks that exist
func TestShellInDocs(t *testing.T) {
	built, cache := make(map[string]string), t.TempDir()
	program := func(pkg string) string {
		if built[pkg] == "" {
			built[pkg] = filepath.Join(t.TempDir(), "program")
			cmd := exec.CommandContext(t.Context(), "go", "build", "-o", built[pkg], pkg)
			cmd.Dir = ".."
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, string(out))
		}
		return built[pkg]
	}
	for _, f := range fences(t, "sh") {
		free := make(map[string]string)
		lines := strings.Split(strings.TrimSpace(loopback.ReplaceAllStringFunc(f.text, func(addr string) string {
			if free[addr] == "" {
				free[addr] = freeAddr(t)
			}
			return free[addr]
		})), "\n")
		ctx, stop := context.WithCancel(t.Context())
		for _, line := range lines {
			if line == "go test work" {
				continue
			}
			words := strings.Fields(line)
			if strings.Contains(line, "-bench") {
				findBenchmarks(t, strings.Fields(strings.ReplaceAll(line, "'", "")))
				continue
			}
			if slices.Contains([]string{"CGO_ENABLED=0", "docker", "kind", "kubectl"}, words[0]) {
				continue
			}
			if words[0] == "grpcurl" {
				runGrpcurl(ctx, t, strings.Fields(strings.ReplaceAll(line, "'", ""))[1:])
				continue
			}
			require.GreaterOrEqual(t, len(words), 3, "%s: %s", f, line)
			require.Equal(t, []string{"go", "run"}, words[:2], "%s: %s", f, line)
			args := words[3:]
			background := args[len(args)-1] == "&"
			if background {
				args = args[:len(args)-1]
			}
			if args[0] == "demo" && !strings.Contains(line, "--duration") {
				args = append(args, "--duration", "2s")
			}
			if slices.Contains(args, "--seeds") {
				args = append(args, "--seeds", "1", "--duration", "6m")
			}
			cmd := exec.CommandContext(ctx, program(words[2]), args...)
			cmd.Dir = ".."
			cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+cache)
			if background {
				require.NoError(t, cmd.Start())
				defer func() { stop(); _ = cmd.Wait() }()
				answers(t, loopback.FindString(line))
				continue
			}
			out, err := cmd.CombinedOutput()
			if slices.Contains(args, absentTrace) {
				require.Error(t, err, "%s: %s", f, line)
				require.Contains(t, string(out), "--trace: open "+absentTrace, "%s: %s", f, line)
				continue
			}
			if cmd.ProcessState.ExitCode() == notValid {
				continue // the command reports that this machine is busy
			}
			require.NoError(t, err, "%s: %s\n%s", f, line, out)
		}
		stop()
	}
}

// notValid is the command's exit code where what it measured is not valid.
const notValid = 3

// runGrpcurl runs the program of that name.
func runGrpcurl(ctx context.Context, t *testing.T, args []string) {
	t.Helper()
	if _, err := exec.LookPath("grpcurl"); err != nil {
		require.Empty(t, os.Getenv("WARMPATH_REQUIRE_ALL"), "grpcurl is not installed")
		t.Logf("not run, grpcurl is not installed: %s", strings.Join(args, " "))
		return
	}
	cmd := exec.CommandContext(ctx, "grpcurl", args...)
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "grpcurl %s\n%s", strings.Join(args, " "), out)
	require.NotEmpty(t, out)
}

// findBenchmarks checks that each package of a go test command has a benchmark
// that its -bench names.
func findBenchmarks(t *testing.T, words []string) {
	t.Helper()
	if words[0] == "cd" { // a module of its own, which .ci/run tests: nothing here needs its dependencies
		require.FileExists(t, filepath.Join("..", words[1], "go.mod"))
		require.Equal(t, "GOWORK=off", words[3])
		words = words[4:]
	}
	require.Equal(t, []string{"go", "test"}, words[:2])
	at := slices.Index(words, "-bench")
	require.Greater(t, len(words), at+1)
	pattern, _, _ := strings.Cut(words[at+1], "/")
	for _, pkg := range words[2:slices.Index(words, "-run")] {
		cmd := exec.CommandContext(t.Context(), "go", "test", "-list", pattern, pkg)
		cmd.Dir = ".."
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), "Benchmark", "%v: %s", words, pkg)
	}
}

// answers waits until an address accepts connections.
func answers(t *testing.T, addr string) {
	t.Helper()
	require.NotEmpty(t, addr)
	eventually(t, addr, func() bool {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
}
