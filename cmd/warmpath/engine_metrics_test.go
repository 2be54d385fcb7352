package main

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEngineServesMetrics(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var out, log transcript
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"engine", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--kv-tokens", "32000"}, &out, &log)
	}()
	page := regexp.MustCompile(`metrics on (\S+)`)
	require.Eventually(t, func() bool { return page.MatchString(out.String()) }, 20*time.Second, 5*time.Millisecond, "%s%s", &out, &log)
	a, err := http.Get(page.FindStringSubmatch(out.String())[1])
	require.NoError(t, err)
	text, err := io.ReadAll(a.Body)
	require.NoError(t, err)
	require.NoError(t, a.Body.Close())
	require.Contains(t, string(text), `vllm:num_requests_running{engine="0",model_name="h100-14b"} 0`)
	require.Contains(t, string(text), `num_gpu_blocks="2000"`)
	cancel()
	require.Equal(t, exitOK, <-ended, "%s", &log)
}
