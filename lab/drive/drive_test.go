package drive

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/lab/enginesim"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/lab/workload"
)

func engines(t *testing.T, n int, c grpcserver.Config) *Fleet {
	t.Helper()
	f, err := StartFleet(t.Context(), n, 0, c)
	require.NoError(t, err)
	t.Cleanup(f.Kill)
	return f
}

func requests(t *testing.T, s workload.Spec) []workload.Request {
	t.Helper()
	rs, err := workload.Generate(s)
	require.NoError(t, err)
	require.NotEmpty(t, rs)
	return rs
}

// The samples agree with the engines' own figures.
func TestRunAgreesWithTheEngines(t *testing.T) {
	rs := requests(t, workload.Spec{Name: "cross-session", Rate: 4, Duration: 12 * time.Second, Seed: 3})
	for _, dialect := range Dialects() {
		f := engines(t, 3, grpcserver.Config{Speed: 40})
		var last Progress
		ss, err := Run(t.Context(), rs, Options{
			Target: f.Target(), Clients: 2, Dialect: dialect, Speed: 40, Seed: 1, WarmUp: 5 * time.Second, Timeout: time.Minute,
			Progress: func(p Progress) { last = p },
		})
		require.NoError(t, err)
		require.Equal(t, Progress{len(rs), len(rs), 0}, last)
		var prompt, cached, computed, output int
		for i, s := range ss {
			require.NoError(t, s.Err)
			require.Equal(t, rs[i].At, s.At)
			require.Equal(t, rs[i].At < 5*time.Second, s.WarmUp)
			require.Equal(t, rs[i].PromptTokens, s.Prompt)
			require.Equal(t, rs[i].OutputTokens, s.Output)
			require.Positive(t, s.TTFT)
			require.InDelta(t, float64(s.Latency), float64(s.TTFT)+float64(s.TPOT)*float64(s.Output-1), 100)
			require.NotEmpty(t, s.Reason)
			prompt, cached, computed, output = prompt+s.Prompt, cached+s.Cached, computed+s.Computed, output+s.Output
		}
		var p, c, m, o int
		for _, server := range f.servers {
			s := server.Stats()
			p, c, m, o = p+s.Engine.PromptTokens, c+s.Engine.CachedTokens, m+s.Engine.ComputedTokens, o+s.Engine.OutputTokens
		}
		require.Equal(t, []int{p, c, m, o}, []int{prompt, cached, computed, output}, dialect)
		require.Positive(t, cached)
	}
}

// The same seed sends each request to the same client, whatever the policy: round robin's replicas follow.
func TestRunIsSeeded(t *testing.T) {
	rs := requests(t, workload.Spec{Name: "hot-prefix", Rate: 10, Duration: 4 * time.Second})
	route := func(seed uint64) (replicas []string) {
		f := engines(t, 4, grpcserver.Config{Virtual: true})
		ss, err := Run(t.Context(), rs, Options{Target: f.Target(), Clients: 3, Speed: 100, Seed: seed,
			Config: `{"policy":{"consistent_hash":{}}}`})
		require.NoError(t, err)
		for _, s := range ss {
			require.NoError(t, s.Err)
			require.Equal(t, policy.ReasonRing, s.Reason)
			replicas = append(replicas, s.Replica)
		}
		return replicas
	}
	require.Equal(t, route(1), route(2), "the ring does not depend on the client")
}

// silent is an engine that answers nothing until it is released.
type silent struct {
	enginepb.UnimplementedVllmEngineServer
	arrived chan string
	release chan struct{}
}

func (s *silent) Generate(r *enginepb.GenerateRequest, stream grpc.ServerStreamingServer[enginepb.GenerateResponse]) error {
	s.arrived <- r.GetRequestId()
	select {
	case <-s.release:
	case <-stream.Context().Done():
		return status.FromContextError(stream.Context().Err()).Err()
	}
	if r.GetRequestId() == "empty" {
		return nil
	}
	if r.GetRequestId() == "refused" {
		return status.Error(codes.InvalidArgument, "not this one")
	}
	return stream.Send(&enginepb.GenerateResponse{Response: &enginepb.GenerateResponse_Complete{
		Complete: &enginepb.GenerateComplete{PromptTokens: 12, CachedTokens: 4, CompletionTokens: 3},
	}})
}

func serveSilent(t *testing.T, n int) (*silent, string) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &silent{arrived: make(chan string, n), release: make(chan struct{})}
	srv := grpc.NewServer()
	enginepb.RegisterVllmEngineServer(srv, s)
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(lis) }()
	t.Cleanup(func() {
		srv.Stop()
		require.NoError(t, <-ended)
	})
	return s, lis.Addr().String()
}

// Open loop: all requests are sent though none is answered. A server without warmpath's trailers is measured by
// the client's clock.
func TestRunIsOpenLoop(t *testing.T) {
	const n = 50
	s, addr := serveSilent(t, n)
	rs := make([]workload.Request, n)
	for i := range rs {
		rs[i] = workload.Request{ID: strconv.Itoa(i), At: time.Duration(i) * 20 * time.Millisecond, Text: "hello", PromptTokens: 2, OutputTokens: 3}
	}
	rs[n-2].ID, rs[n-1].ID = "empty", "refused"
	held := make(chan time.Duration, 1) // how long the first request waited, at least
	go func() {
		var first time.Time
		for range n {
			if <-s.arrived == "0" {
				first = time.Now()
			}
		}
		held <- time.Since(first)
		close(s.release)
	}()
	ss, err := Run(t.Context(), rs, Options{Target: addr, Clients: 2, Speed: 10, Timeout: time.Minute})
	require.NoError(t, err)
	require.ErrorContains(t, ss[n-2].Err, "no tokens")
	require.ErrorContains(t, ss[n-1].Err, "not this one")
	for i, x := range ss[:n-2] {
		require.NoError(t, x.Err)
		require.Equal(t, []int{12, 4, 8, 3}, []int{x.Prompt, x.Cached, x.Computed, x.Output})
		if i == 0 {
			require.GreaterOrEqual(t, x.TTFT, 10*<-held)
		}
		require.GreaterOrEqual(t, x.Latency, x.TTFT)
	}
	require.Equal(t, 2, Summarize("p", 1, ss, Targets{}).Errors)
}

// The time in the channel's queue counts, times the speed. The engines' own figures are used instead of the
// client's clock only where they report the whole call.
func TestMeasure(t *testing.T) {
	r := run{Options: &Options{Speed: 60, WarmUp: time.Second}}
	start := time.Now()
	q := &workload.Request{At: 2 * time.Second, PromptTokens: 100}
	trailer := metadata.Pairs(grpcserver.TrailerTTFT, "150.5", grpcserver.TrailerE2E, "350.5", grpcserver.TrailerCached, "32", grpcserver.TrailerComputed, "70")
	a := Answer{First: start.Add(10 * time.Millisecond), Output: 11, Trailer: trailer}
	d := client.Decision{Replica: "a", Reason: policy.ReasonQueued, Queued: 2 * time.Millisecond, Attempts: 1, Usage: policy.NoUsage}
	var s Sample
	r.measure(&s, q, &a, &d, start, 20*time.Millisecond)
	require.Equal(t, Sample{
		At: 2 * time.Second, TTFT: 270500 * time.Microsecond, Latency: 470500 * time.Microsecond, TPOT: 20 * time.Millisecond,
		Prompt: 100, Cached: 32, Computed: 70, Output: 11, Replica: "a", Reason: policy.ReasonQueued,
	}, s)

	d.Attempts, d.Usage = 2, policy.Usage{PromptTokens: 90, CachedTokens: 16, OutputTokens: 11}
	s = Sample{}
	r.measure(&s, q, &a, &d, start, 20*time.Millisecond)
	require.Equal(t, 600*time.Millisecond, s.TTFT)
	require.Equal(t, 1200*time.Millisecond, s.Latency)
	require.Equal(t, 60*time.Millisecond, s.TPOT)
	require.Equal(t, []int{90, 16, 70}, []int{s.Prompt, s.Cached, s.Computed})

	a.Trailer, s = nil, Sample{}
	r.measure(&s, q, &a, &d, start, 20*time.Millisecond)
	require.Equal(t, 74, s.Computed)
}

func TestRunStops(t *testing.T) {
	s, addr := serveSilent(t, 1)
	rs := []workload.Request{
		{ID: "a", Text: "hello", PromptTokens: 2, OutputTokens: 3},
		{ID: "b", At: time.Hour, Text: "hello", PromptTokens: 2, OutputTokens: 3},
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-s.arrived
		cancel()
	}()
	ss, err := Run(ctx, rs, Options{Target: addr, Clients: 1})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, codes.Canceled, status.Code(ss[0].Err))
}

func TestRunRefuses(t *testing.T) {
	for name, o := range map[string]Options{
		"clients": {Target: "h:1"},
		"speed":   {Target: "h:1", Clients: 1, Speed: -1},
		"dialect": {Target: "h:1", Clients: 1, Dialect: "http"},
		"address": {Target: "warmpath:///h", Clients: 1},
		"policy":  {Target: "h:1", Clients: 1, Config: `{"policy":{"none":{}}}`},
	} {
		_, err := Run(t.Context(), nil, o)
		require.ErrorContains(t, err, name)
	}
	_, err := Run(t.Context(), nil, Options{Target: "127.0.0.1:1", Clients: 1, Connect: 50 * time.Millisecond})
	require.ErrorIs(t, err, ErrUnreachable)
}

func TestStartFleetRefuses(t *testing.T) {
	_, err := StartFleet(t.Context(), 2, 0, grpcserver.Config{Engine: enginesim.Config{Preset: "none"}})
	require.ErrorContains(t, err, "none")
}
