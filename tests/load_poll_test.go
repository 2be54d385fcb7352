package tests

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/warmpath/warmpath/client"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
	modelserver "github.com/warmpath/warmpath/server/replica"
)

// counted counts the connections that it accepts.
type counted struct {
	net.Listener
	n atomic.Int64
}

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return c, err
}

// polled is a model server with a queue of its own.
type polled struct {
	*replica
	*counted
	asked  atomic.Int64
	queued atomic.Int64 // tokens
}

// startPolled serves one until the test ends.
func startPolled(t *testing.T) *polled {
	t.Helper()
	l := listenLoopback(t)
	p := &polled{replica: &replica{addr: l.Addr().String()}, counted: &counted{Listener: l}}
	r, err := modelserver.New(modelserver.Config{
		Counts: func(string) bool { return false }, // so that only polls report load
		Load: func() modelserver.Load {
			p.asked.Add(1)
			return modelserver.Load{Ongoing: -1, Waiting: -1, UncachedTokens: int(p.queued.Load())}
		},
	})
	require.NoError(t, err)
	s := grpc.NewServer(r.ServerOptions()...)
	testpb.RegisterTestServiceServer(s, p.replica)
	ended := make(chan error, 1)
	go func() { ended <- r.Serve(t.Context(), s, p.counted) }()
	t.Cleanup(func() { s.Stop(); <-ended })
	return p
}

// avoided makes calls until 20 in a row do not reach a replica. On a busy machine an answer may come too late for the
// call that polled.
func avoided(t *testing.T, call func(), reached func() int64) {
	t.Helper()
	eventually(t, "it is avoided", func() bool {
		before, calls := reached(), 0
		for calls < 20 && reached() == before {
			call()
			calls++
		}
		return reached() == before
	})
}

// Clients without a server avoid a replica that others have loaded, over their existing connections. The number of
// polls grows with the calls, not with the clients.
func TestLoadPoll(t *testing.T) {
	const calls = 120
	for _, clients := range []int{1, 24} {
		t.Run(fmt.Sprint(clients), func(t *testing.T) {
			servers, rs := make([]*polled, 3), make([]*replica, 3)
			for i := range servers {
				servers[i] = startPolled(t)
				rs[i] = servers[i].replica
			}
			servers[0].queued.Store(10_000_000)
			stubs := make([]testpb.TestServiceClient, clients)
			for i := range stubs {
				cc := dial(t, target(rs...), client.WithConfig(config(`{"kv_aware":{}}`, `"load_poll":"grpc:orca"`)))
				connected(t, cc, rs)
				stubs[i] = testpb.NewTestServiceClient(cc)
			}
			at := 0
			call := func() {
				_, err := stubs[at%clients].UnaryCall(deadline(t), simple(fmt.Sprint("prompt ", at)))
				require.NoError(t, err)
				at++
			}
			for at < calls {
				call()
			}
			if clients == 1 {
				avoided(t, call, servers[0].calls.Load)
			}
			var asked int64
			for _, s := range servers {
				asked += s.asked.Load()
				require.EqualValues(t, clients, s.n.Load(), "connections")
			}
			require.NotZero(t, asked)
			require.LessOrEqual(t, asked, int64(5*at))
		})
	}
}

// Engines are polled with GetLoads.
func TestLoadPollOfEngines(t *testing.T) {
	full := startEngine(t, grpcserver.Config{Speed: 1e-6})
	idle := startEngine(t, grpcserver.Config{Virtual: true})
	direct, err := grpc.NewClient("passthrough:///"+full.Addr().String(), insecureOption())
	require.NoError(t, err)
	defer direct.Close()
	for i := range 5 {
		_, err := enginepb.NewVllmEngineClient(direct).Generate(deadline(t), generation(fmt.Sprint("other", i)))
		require.NoError(t, err)
	}
	eventually(t, "it is busy", func() bool { return full.Stats().Ongoing == 5 })
	cc := dial(t, "warmpath:///"+full.Addr().String()+","+idle.Addr().String(),
		client.WithConfig(`{"policy":{"power_of_two_choices":{}},"load_poll":"grpc:vllm","ejection":{"failures":"off"}}`))
	stub := enginepb.NewVllmEngineClient(cc)
	eventually(t, "both are connected", func() bool {
		ctx, cancel := context.WithTimeout(client.WithPin(t.Context(), full.Addr().String()), time.Second)
		defer cancel()
		_, err := stub.Generate(ctx, generation("first"))
		return err == nil
	})
	call := func(ctx context.Context) error {
		q := generation("ours")
		q.SamplingParams.MaxTokens = new(uint32(1))
		s, err := stub.Generate(ctx, q, grpc.WaitForReady(true))
		for err == nil {
			_, err = s.Recv()
		}
		return err
	}
	require.Equal(t, io.EOF, call(client.WithPin(deadline(t), idle.Addr().String())))
	avoided(t, func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // one that reaches the other never ends
		defer cancel()
		_ = call(ctx)
	}, func() int64 { return int64(full.Stats().Engine.Submitted) })
}

// An invalid load_poll is refused at dial, and the error names the field.
func TestLoadPollIsChecked(t *testing.T) {
	for field, want := range map[string]string{
		`"http://HOST:8000/metrics"`: `load_poll: "http://HOST:8000/metrics" is none of [grpc:openengine grpc:orca grpc:sglang grpc:tokenspeed grpc:vllm]`,
		`{"from":"grpc:vllm"}`:       "load_poll: it is an object, not a string",
	} {
		_, err := client.New("warmpath:///127.0.0.1:1", insecureOption(), client.WithConfig(`{"load_poll":`+field+`}`))
		require.ErrorContains(t, err, want)
	}
}

// Calls go on if replicas do not answer. This is logged once for each replica.
func TestLoadPollUnanswered(t *testing.T) {
	rs := replicas(t, 2)
	var log logged
	cc := dial(t, target(rs...), client.WithConfig(config(`{"kv_aware":{}}`, `"load_poll":"grpc:sglang"`)),
		client.WithLogger(log.logger()))
	connected(t, cc, rs)
	stub := testpb.NewTestServiceClient(cc)
	for i := range 50 {
		_, err := stub.UnaryCall(deadline(t), simple(fmt.Sprint("prompt ", i)))
		require.NoError(t, err)
	}
	const line = "does not answer load_poll"
	eventually(t, "both are logged", func() bool { return strings.Count(log.String(), line) == 2 })
	require.Contains(t, log.String(), "unknown service sglang.grpc.scheduler.SglangScheduler")
}
