package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The HTTP endpoint starts and stops with the server.
func TestServeAnswersHTTP(t *testing.T) {
	path := file(t, "server.yaml", "listen: 127.0.0.1:0\ndeployments: {chat: {replicas: [{id: a, address: 'h:1'}]}}")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, log transcript
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"serve", "--config", path, "--http", "127.0.0.1:0"}, &out, &log) }()
	address := regexp.MustCompile(`shows its page and answers POST (\S+) on (\S+)`)
	require.Eventually(t, func() bool { return address.MatchString(out.String()) }, 20*time.Second, 5*time.Millisecond, "%s", &log)
	at := address.FindStringSubmatch(out.String())
	a, err := http.Post("http://"+at[2]+at[1], "application/json", strings.NewReader(`{"prompt":"hello"}`))
	require.NoError(t, err)
	body, err := io.ReadAll(a.Body)
	require.NoError(t, err)
	require.NoError(t, a.Body.Close())
	require.Contains(t, string(body), `{"replica_id":"a","host":"h","port":1,"deployment":"chat"}`)
	a, err = http.Get("http://" + at[2] + "/")
	require.NoError(t, err)
	body, err = io.ReadAll(a.Body)
	require.NoError(t, err)
	require.NoError(t, a.Body.Close())
	require.Contains(t, string(body), `<th scope="row">a<small>h:1</small></th>`)
	http.DefaultClient.CloseIdleConnections()
	code, _, wrong := command(t, "serve", "--check", "--config", path, "--http", ":4780")
	require.Equal(t, exitUsage, code)
	require.Contains(t, wrong, "with --listen or --http: http.listen: :4780 is not on the loopback, and there is no TLS")

	code, line, wrong := command(t, "choose", "--curl", at[2], "--session", "it's me", "--prompt", "say \"hello\"", "--model", "m", "--deployment", "chat", "--exclude", "x,y")
	require.Zero(t, code, wrong)
	require.Equal(t, "curl -sS http://"+at[2]+`/internal/route -H 'X-Warmpath-Deployment: chat' -H 'X-Warmpath-Exclude: x,y' `+
		`-H 'x-session-id: it'\''s me' -d '{"model":"m","prompt":"say \"hello\""}'`+"\n", line)
	if _, err := exec.LookPath("curl"); err == nil {
		body, err := exec.Command("sh", "-c", line).CombinedOutput()
		require.NoError(t, err, "%s", body)
		require.Contains(t, string(body), `"replica_id":"a"`)
	}
	cancel()
	require.Equal(t, exitOK, <-ended, "%s", &log)
	require.NotContains(t, log.String(), "hello")
}

// The printed curl command has the options for the server's address and credentials, but not the token itself.
func TestCurlSecurely(t *testing.T) {
	cert, key := selfSigned(t, "server")
	token := file(t, "it's a token", "0123456789abcdef\nfedcba9876543210\n")
	path := file(t, "server.yaml", fmt.Sprintf(`
listen: 127.0.0.1:0
http: {listen: '127.0.0.1:0'}
tls: {cert: %s, key: %s}
principals: [{name: team, token_file: "%s"}]
deployments: {chat: {replicas: [{id: a, address: 'h:1'}]}}`, cert, key, token))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, log transcript
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"serve", "--config", path}, &out, &log) }()
	address := regexp.MustCompile(`POST \S+ on (\S+)`)
	require.Eventually(t, func() bool { return address.MatchString(out.String()) }, 20*time.Second, 5*time.Millisecond, "%s", &log)
	at := address.FindStringSubmatch(out.String())[1]

	code, line, wrong := command(t, "choose", "--curl", at, "--tls-ca", cert, "--token-file", token)
	require.Zero(t, code, wrong)
	require.Contains(t, line, "curl -sS https://"+at+"/internal/route --cacert "+cert+" ")
	require.NotContains(t, line, "0123456789abcdef")
	if _, err := exec.LookPath("curl"); err == nil {
		body, err := exec.Command("sh", "-c", line).CombinedOutput()
		require.NoError(t, err, "%s", body)
		require.Contains(t, string(body), `"replica_id":"a"`)
	}
	code, _, wrong = command(t, "choose", "--curl", at, "--tls-name", "x")
	require.Equal(t, exitUsage, code)
	require.Contains(t, wrong, "--tls-name: ")
	cancel()
	require.Equal(t, exitOK, <-ended, "%s", &log)
}
