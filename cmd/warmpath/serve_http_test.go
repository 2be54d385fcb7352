package main

import (
	"context"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The door for HTTP opens with the server and closes with it.
func TestServeAnswersHTTP(t *testing.T) {
	path := file(t, "server.yaml", "listen: 127.0.0.1:0\nhttp: {listen: '127.0.0.1:0'}\ndeployments: {chat: {replicas: [{id: a, address: 'h:1'}]}}")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, log transcript
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"serve", "--config", path}, &out, &log) }()
	address := regexp.MustCompile(`POST (\S+) on (\S+)`)
	require.Eventually(t, func() bool { return address.MatchString(out.String()) }, 20*time.Second, 5*time.Millisecond, "%s", &log)
	at := address.FindStringSubmatch(out.String())
	a, err := http.Post("http://"+at[2]+at[1], "application/json", strings.NewReader(`{"prompt":"hello"}`))
	require.NoError(t, err)
	said, err := io.ReadAll(a.Body)
	require.NoError(t, err)
	require.NoError(t, a.Body.Close())
	require.Contains(t, string(said), `{"replica_id":"a","host":"h","port":1,"deployment":"chat"}`)
	http.DefaultClient.CloseIdleConnections()

	code, line, wrong := command(t, "choose", "--curl", at[2], "--session", "it's me", "--prompt", "say \"hello\"", "--model", "m", "--deployment", "chat", "--exclude", "x,y")
	require.Zero(t, code, wrong)
	require.Equal(t, "curl -sS http://"+at[2]+`/internal/route -H 'X-Warmpath-Deployment: chat' -H 'X-Warmpath-Exclude: x,y' `+
		`-H 'x-session-id: it'\''s me' -d '{"model":"m","prompt":"say \"hello\""}'`+"\n", line)
	if _, err := exec.LookPath("curl"); err == nil {
		said, err := exec.Command("sh", "-c", line).CombinedOutput()
		require.NoError(t, err, "%s", said)
		require.Contains(t, string(said), `"replica_id":"a"`)
	}
	cancel()
	require.Equal(t, exitOK, <-ended, "%s", &log)
	require.NotContains(t, log.String(), "hello")
}
