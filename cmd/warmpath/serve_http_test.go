package main

import (
	"context"
	"io"
	"net/http"
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
	cancel()
	require.Equal(t, exitOK, <-ended, "%s", &log)
	require.NotContains(t, log.String(), "hello")
}
