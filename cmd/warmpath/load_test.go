package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
)

// requireFields checks that the JSON has every field of the contract, with exactly its name.
func requireFields(t *testing.T, text string) {
	t.Helper()
	for _, f := range []string{
		"replicas", "clients", "requests", "results", "policy", "errors", "cached_token_ratio", "ttft_ms", "tpot_ms", "latency_ms",
		"mean", "p50", "p90", "p99", "goodput", "output_tokens_per_s", "max_over_mean_load", "decisions",
	} {
		require.Contains(t, text, `"`+f+`":`)
	}
}

func requireSound(t *testing.T, c drive.Comparison, policies ...string) {
	t.Helper()
	require.Len(t, c.Results, len(policies))
	for i, r := range c.Results {
		require.Equal(t, policies[i], r.Policy)
		require.Equal(t, c.Requests, r.Requests)
		require.Zero(t, r.Errors)
		require.Positive(t, r.TTFT.Mean)
		require.Positive(t, r.TPOT.P50)
		require.Greater(t, r.Latency.P99, r.TTFT.P50)
		require.Positive(t, r.OutputTokensPerS)
		require.GreaterOrEqual(t, r.MaxOverMeanLoad, 1.0)
		n := 0
		for _, k := range r.Decisions {
			n += k
		}
		require.Equal(t, r.Requests, n)
	}
}

func TestDemo(t *testing.T) {
	dir := t.TempDir()
	page, table := filepath.Join(dir, "demo.html"), filepath.Join(dir, "demo.csv")
	code, stdout, stderr := command(t, "demo", "--duration", "2s", "--policies", "round_robin,kv_aware",
		"--speed", "20", "--json", "--report", page, "--csv", table)
	wentWell(t, code, stderr)
	var c drive.Comparison
	strict(t, stdout, &c)
	requireFields(t, stdout)
	require.Equal(t, 4, c.Replicas)
	require.Equal(t, 4, c.Clients)
	requireSound(t, c, "round_robin", "kv_aware")
	require.Greater(t, c.Results[1].CachedTokenRatio, c.Results[0].CachedTokenRatio)
	require.Contains(t, stderr, "round_robin: done")
	for path, begins := range map[string]string{page: "<!DOCTYPE html>", table: "policy,requests"} {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.HasPrefix(b, []byte(begins)), path)
	}
}

// If prefill and decode are separate, two engines serve a request, and every request succeeds.
func TestDemoDisaggregated(t *testing.T) {
	code, stdout, stderr := command(t, "demo", "--disaggregated", "--workload", "chat", "--replicas", "2", "--clients", "2",
		"--duration", "1s", "--speed", "4", "--json") // KV waits for its decode leg for 30 s, which are 7.5 s here
	wentWell(t, code, stderr)
	var c drive.Comparison
	strict(t, stdout, &c)
	requireSound(t, c, "together", "apart")
	require.Zero(t, c.Results[0].Decisions[string(policy.ReasonDecode)])
	require.Positive(t, c.Results[1].Decisions[string(policy.ReasonDecode)])
	require.Equal(t, []int{2, 2}, []int{c.Replicas, c.Clients})
	for _, wrong := range [][]string{{"--mode", "local"}, {"--replicas", "1"}} {
		code, _, stderr := command(t, append([]string{"demo", "--disaggregated"}, wrong...)...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "--disaggregated")
	}
}

// A canceled demo ends its engines and calls.
func TestDemoInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	go func() { // when the load has started
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			if strings.Contains(lines.Text(), "requests sent") {
				cancel()
			}
		}
	}()
	var out bytes.Buffer
	require.Equal(t, exitInterrupted, run(ctx, []string{"demo", "--duration", "60s", "--speed", "2", "--replicas", "1"}, &out, w))
	require.NoError(t, w.Close())
	require.Empty(t, out.String())
}

// Issue 12.18: if the load was not sent on time, the output beside the tables and the exit code mark the run as not
// valid.
func TestDemoThatIsNotValid(t *testing.T) {
	args := []string{"demo", "--duration", "30ms", "--policies", "round_robin", "--replicas", "1", "--clients", "1", "--speed", "10000", "--load", "0.05"}
	code, stdout, stderr := command(t, args...)
	require.Equal(t, exitInvalid, code, stderr)
	require.Contains(t, stdout, "This run is not valid: ")
	require.NotContains(t, stdout, "the first token takes")
	require.NotContains(t, stderr, "trust these figures")
	code, stdout, stderr = command(t, append(args, "--json")...)
	require.Equal(t, exitInvalid, code, stderr)
	var c drive.Comparison
	strict(t, stdout, &c)
	require.NotEmpty(t, c.Invalid)
}

// wentWell checks the exit code of a run. On a busy machine its load may be late.
func wentWell(t *testing.T, code int, stderr string) {
	t.Helper()
	if code != exitInvalid {
		require.Equal(t, exitOK, code, stderr)
	}
}

// conversations is a mooncake trace of conversations that grow by one block each turn.
func conversations(t *testing.T, n, turns int) string {
	var b strings.Builder
	for turn := range turns {
		for k := range n {
			ids := []string{"0"}
			for i := range turn + 1 {
				ids = append(ids, fmt.Sprint(1+k*turns+i))
			}
			fmt.Fprintf(&b, `{"timestamp": %d, "input_length": %d, "output_length": 5, "hash_ids": [%s]}`+"\n",
				turn*2000+k*20, 512*len(ids), strings.Join(ids, ","))
		}
	}
	return file(t, "trace.jsonl", b.String())
}

func TestReplay(t *testing.T) {
	const speed = 20
	fleet, err := drive.StartFleet(t.Context(), 4, 0, grpcserver.Config{Speed: speed})
	require.NoError(t, err)
	defer fleet.Kill()
	args := []string{"replay", "--trace", conversations(t, 10, 4), "--format", "mooncake", "--target", fleet.Target(),
		"--clients", "3", "--speed", fmt.Sprint(speed)}
	policies := []string{"round_robin", "kv_aware"}
	code, stdout, stderr := command(t, append(args, "--json", "--policies", strings.Join(policies, ","))...)
	wentWell(t, code, stderr)
	var c drive.Comparison
	strict(t, stdout, &c)
	requireFields(t, stdout)
	require.Equal(t, 4, c.Replicas)
	require.Equal(t, 3, c.Clients)
	require.Equal(t, 40, c.Requests)
	requireSound(t, c, policies...)
	require.Greater(t, c.Results[1].CachedTokenRatio, c.Results[0].CachedTokenRatio)

	code, stdout, stderr = command(t, append(args, "--dialect", "vllm-inference", "--limit", "20", "--warm-up", "100ms",
		"--jitter", "1s", "--rate-scale", "2")...)
	wentWell(t, code, stderr)
	require.Contains(t, stdout, "kv_aware")
}

func TestReplayText(t *testing.T) {
	fleet, err := drive.StartFleet(t.Context(), 1, 0, grpcserver.Config{Speed: 50})
	require.NoError(t, err)
	defer fleet.Kill()
	trace := file(t, "text.jsonl", `{"timestamp": 1000, "session_id": "s", "input": "`+strings.Repeat("well ", 100)+`", "output": "four words of answer"}
{"timestamp": 2000000, "session_id": "s", "input": "`+strings.Repeat("well ", 100)+`and?", "output": "more"}`)
	for _, dialect := range drive.Dialects() {
		code, stdout, stderr := command(t, "replay", "--trace", trace, "--format", "text", "--target", fleet.Target(),
			"--speed", "50", "--dialect", dialect, "--json")
		wentWell(t, code, stderr)
		var c drive.Comparison
		strict(t, stdout, &c)
		require.Equal(t, 2, c.Requests)
		require.Zero(t, c.Results[0].Errors, stderr)
		require.Positive(t, c.Results[0].CachedTokenRatio)
	}
}

func TestReplayFails(t *testing.T) {
	trace := conversations(t, 1, 1)
	code, stdout, stderr := command(t, "replay", "--trace", trace, "--format", "mooncake", "--target", "127.0.0.1:1", "--connect-timeout", "100ms", "--json")
	require.Equal(t, exitFailed, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "no replica answers")

	fleet, err := drive.StartFleet(t.Context(), 1, 0, grpcserver.Config{Virtual: true, Engine: enginesim.Config{MaxModelLen: 100}})
	require.NoError(t, err)
	defer fleet.Kill()
	code, stdout, stderr = command(t, "replay", "--trace", trace, "--format", "mooncake", "--target", fleet.Target(), "--json")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "every request of kv_aware failed")
	var c drive.Comparison
	strict(t, stdout, &c)
	require.Equal(t, 1, c.Results[0].Errors)
}

func TestEngine(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	var errs bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"engine", "--listen", "127.0.0.1:0", "--speed", "50", "--early-headers", "--model", "m",
			"--max-ongoing", "100", "--kv-tokens", "100000"}, w, &errs)
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "100000 tokens")
	addr := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	require.NotEmpty(t, addr, line)

	// The port is in use now.
	code, _, stderr := command(t, "engine", "--listen", addr)
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "in use")

	replay := func(model string) (int, string) {
		code, _, stderr := command(t, "replay", "--trace", conversations(t, 2, 2), "--format", "mooncake", "--target", addr,
			"--dialect", "vllm-inference", "--model", model, "--speed", "50", "--policies", "round_robin")
		return code, stderr
	}
	code, stderr = replay("m")
	wentWell(t, code, stderr)
	code, stderr = replay("n")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, `"n" is not served here`)

	cancel()
	select {
	case code := <-ended:
		require.Equal(t, exitOK, code, errs.String())
	case <-time.After(30 * time.Second):
		t.Fatal("the engine does not stop")
	}
	require.Contains(t, errs.String(), "served 4 requests")
}
