package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/cmd/warmpath/internal/keda/externalscaler"
	"github.com/warmpath/warmpath/internal/freeport"
)

// transcript is the output of a running command.
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

var _ io.Writer = (*transcript)(nil)

// The server starts from three lines, answers, applies a changed file but not a broken one, and ends on a signal.
func TestServeAndChoose(t *testing.T) {
	const one = "listen: 127.0.0.1:0\ndeployments: {chat: {policy: {consistent_hash: {}}, replicas: [{id: a, address: 'h:1'}]}}"
	path := file(t, "server.yaml", one)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, log transcript
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"serve", "--config", path}, &out, &log) }()
	address := regexp.MustCompile(`serves 1 deployment on (\S+)`)
	until := func(what func() bool) {
		t.Helper()
		require.Eventually(t, what, 20*time.Second, 5*time.Millisecond, "%s%s", &out, &log)
	}
	until(func() bool { return address.MatchString(out.String()) })
	at := address.FindStringSubmatch(out.String())[1]

	code, printed, wrong := command(t, "choose", "--server", at, "--session", "s", "--prompt", "hello")
	require.Zero(t, code, wrong)
	require.Contains(t, printed, "replica     a at h:1")
	require.Contains(t, printed, "reason      ring")

	write := func(text string) {
		require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	write("deployments: {}")
	until(func() bool { return strings.Contains(log.String(), "was not taken") })
	write(strings.Replace(one, "id: a", "id: b", 1))
	until(func() bool {
		_, printed, _ := command(t, "choose", "--server", at, "--json")
		var answer struct{ Replica struct{ ID string } }
		return json.Unmarshal([]byte(printed), &answer) == nil && answer.Replica.ID == "b"
	})
	code, _, wrong = command(t, "choose", "--server", at, "--deployment", "none")
	require.Equal(t, exitFailed, code)
	require.Contains(t, wrong, `answers NotFound: there is no deployment "none"; there are chat`)
	cancel()
	require.Equal(t, exitOK, <-ended, "%s", &log)
	require.Contains(t, log.String(), "shutting down")
}

// A config in a ConfigMap is a link to a link. The kubelet replaces the second one.
func TestServeFollowsAConfigMap(t *testing.T) {
	dir := t.TempDir()
	mount := func(version, replica string) {
		require.NoError(t, os.Mkdir(filepath.Join(dir, version), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, version, "warmpath.yaml"),
			[]byte("listen: 127.0.0.1:0\ndeployments: {chat: {replicas: [{id: "+replica+", address: 'h:1'}]}}"), 0o600))
		require.NoError(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
		require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	mount("..1", "a")
	require.NoError(t, os.Symlink("..data/warmpath.yaml", filepath.Join(dir, "warmpath.yaml")))
	at, log := servingWith(t, "--config", filepath.Join(dir, "warmpath.yaml"))
	mount("..2", "b")
	require.Eventually(t, func() bool {
		_, printed, _ := command(t, "choose", "--server", at, "--session", "s")
		return strings.Contains(printed, "replica     b at h:1")
	}, 20*time.Second, 5*time.Millisecond, "%s", log)
}

// KEDA can query the server itself.
func TestServeScales(t *testing.T) {
	at, _ := servingWith(t, "--config", file(t, "server.yaml", "listen: 127.0.0.1:0\ndeployments: {chat: {register: true}}"))
	conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	a, err := externalscaler.NewExternalScalerClient(conn).GetMetricSpec(t.Context(),
		&externalscaler.ScaledObjectRef{ScalerMetadata: map[string]string{"ongoingRequests": "8"}})
	require.NoError(t, err)
	require.Len(t, a.GetMetricSpecs(), 1)
}

func TestServeChecks(t *testing.T) {
	good := file(t, "good.yaml", "deployments: {chat: {register: true}}")
	code, printed, _ := command(t, "serve", "--config", good, "--check")
	require.Zero(t, code)
	require.Contains(t, printed, "good.yaml is good: 1 deployment\n")
	kubernetes := file(t, "kubernetes.yaml", "deployments:\n"+
		"  chat: {target: \"warmpath-kubernetes:///chat.llm:grpc\"}\n  code: {target: \"warmpath-inferencepool:///code.llm\"}\n")
	code, printed, wrong := command(t, "serve", "--config", kubernetes, "--check")
	require.Zero(t, code, wrong)
	require.Contains(t, printed, "2 deployments")
	port := file(t, "port.yaml", "deployments: {chat: {target: \"warmpath-inferencepool:///chat.llm:8000\"}}")
	code, _, wrong = command(t, "serve", "--config", port, "--check")
	require.Equal(t, exitUsage, code)
	require.Contains(t, wrong, "deployments.chat: target: ")
	require.Contains(t, wrong, "the pool has ports of its own")
	bad := file(t, "bad.yaml", "deployments: {chat: {max_attempts: 99, register: true}}")
	for _, args := range [][]string{{"serve", "--config", bad, "--check"}, {"serve", "--config", bad}} {
		code, _, wrong := command(t, args...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, wrong, "deployments.chat: max_attempts: 99 is not between 0 and 10")
	}
	huge := file(t, "huge.yaml", "")
	require.NoError(t, os.Truncate(huge, 1<<40)) // without blocks on the disk
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"serve"}, "--config is required"},
		{[]string{"serve", "--config", "/no/such"}, "/no/such: no such file"},
		{[]string{"serve", "--config", "/dev/zero"}, "/dev/zero: not a regular file"},
		{[]string{"serve", "--config", huge}, "larger than 64 MiB"},
		{[]string{"serve", "--config", good, "--check", "--grace", "-1s"}, "--grace: -1 is less than 0"},
		{[]string{"choose"}, "--server is required"},
		{[]string{"choose", "--server", "x:1", "--timeout", "0s"}, "--timeout: 0 is not a positive number"},
		{[]string{"choose", "--server", ""}, `--server: "" is not host:port`},
		{[]string{"top", "--server", "127.0.0.1"}, `--server: "127.0.0.1" is not host:port`},
		{[]string{"top", "--server", "127.0.0.1:"}, `--server: "127.0.0.1:" is not host:port`},
	} {
		code, _, wrong := command(t, tt.args...)
		require.Equal(t, exitUsage, code, wrong)
		require.Contains(t, wrong, tt.want)
	}
}

// The error distinguishes a server that does not answer, a server that cannot be reached, and an answer with an
// error.
func TestServersThatDoNotAnswer(t *testing.T) {
	at := fmt.Sprint("127.0.0.1:", freeport.Find(1)[0])
	lis, err := net.Listen("tcp", at) // accepts connections, and sends nothing
	require.NoError(t, err)
	for _, args := range [][]string{{"choose"}, {"top", "--once"}} {
		code, _, wrong := command(t, append(args, "--server", at, "--timeout", "50ms")...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, wrong, at+" does not answer in time (see --timeout): ")
	}
	require.NoError(t, lis.Close())
	for _, args := range [][]string{{"choose"}, {"top", "--once"}} {
		code, _, wrong := command(t, append(args, "--server", at)...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, wrong, at+" cannot be reached: ")
	}
	empty, _ := servingWith(t, "--config", file(t, "server.yaml", "listen: 127.0.0.1:0\ndeployments: {chat: {register: true}}"))
	code, _, wrong := command(t, "choose", "--server", empty)
	require.Equal(t, exitFailed, code)
	require.Contains(t, wrong, empty+" answers Unavailable: deployment chat: ")
}

// Issue 12.52: with --log-json every line is JSON, whichever package logs it.
func TestServeLogsJSONOnly(t *testing.T) {
	const config = "listen: 127.0.0.1:0\nhttp: {listen: '127.0.0.1:0'}\nmetrics: '127.0.0.1:0'\ndeployments: {chat: {replicas: [{id: a, address: 'h:1'}]}}"
	path := file(t, "server.yaml", config)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, log transcript
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"serve", "--log-json", "--config", path}, &out, &log) }()
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "serves 1 deployment") }, 20*time.Second, 5*time.Millisecond)
	slog.Warn("from a library")
	stdlog.Print("from another one")
	require.NoError(t, os.WriteFile(path, []byte("deployments: {}"), 0o600))
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "was not taken") }, 20*time.Second, 5*time.Millisecond)
	cancel()
	require.Equal(t, exitOK, <-ended)
	require.Contains(t, log.String(), "from a library")
	require.Contains(t, log.String(), "from another one")

	code, _, wrong := command(t, "serve", "--log-json", "--config", path)
	require.Equal(t, exitUsage, code)
	code, _, unknown := command(t, "serve", "--log-json", "--none")
	require.Equal(t, exitUsage, code)
	for line := range strings.Lines(out.String() + log.String() + wrong + unknown) {
		require.True(t, json.Valid([]byte(line)), line)
	}
}
