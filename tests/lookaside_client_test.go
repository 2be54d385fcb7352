package tests

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/warmpath/warmpath/balancer/policy/roundrobin"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/requestkey"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/server"
)

// lookaside starts a look-aside server for these replicas at an address, "" for a new one.
func lookaside(t *testing.T, address, policy string, rs ...*replica) (at string, kill func()) {
	t.Helper()
	text := "    policy: " + policy + "\n    dialects: " + dialects + "\n    replicas:"
	if len(rs) == 0 {
		text += " []\n    register: true"
	}
	for _, r := range rs {
		text += fmt.Sprintf("\n    - address: %q", r.addr)
	}
	return lookasideWith(t, address, text)
}

// lookasideWith starts a server with this deployment.
func lookasideWith(t *testing.T, address, deployment string) (at string, kill func()) {
	t.Helper()
	at, kill, _ = lookasideServer(t, address, deployment)
	return at, kill
}

// deployed is the config of a server with this deployment.
func deployed(t testing.TB, deployment string) *server.Config {
	t.Helper()
	text := "load_interval: 20ms\ndeployments:\n  chat:\n" + deployment
	config, err := server.ParseConfig([]byte(text))
	require.NoError(t, err, text)
	return config
}

func lookasideServer(t testing.TB, address, deployment string) (at string, kill func(), s *server.Server) {
	t.Helper()
	s, err := server.New(deployed(t, deployment), server.Options{})
	require.NoError(t, err)
	if address == "" {
		address = freeAddr(t)
	}
	l := listenAt(t, address)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	done := false
	kill = func() {
		if !done {
			done = true
			s.Close()
			<-served
		}
	}
	t.Cleanup(kill)
	return l.Addr().String(), kill, s
}

// reconfigurable starts a server whose deployment changes.
func reconfigurable(t *testing.T, deployment string) (at string, push func(deployment string)) {
	t.Helper()
	at, _, s := lookasideServer(t, "", deployment)
	return at, func(deployment string) { require.NoError(t, s.Update(deployed(t, deployment))) }
}

// loadOn is the load that a channel sees on a replica.
func loadOn(t *testing.T, cc *grpc.ClientConn, r *replica) float64 {
	t.Helper()
	var d client.Decision
	reply, err := testpb.NewTestServiceClient(cc).UnaryCall(client.WithDecision(client.WithPin(deadline(t), r.addr), &d), simple("x"))
	require.NoError(t, err)
	require.Equal(t, r.addr, reply.Username)
	return d.Load
}

// Two channels see each other's load. They go on while the server is down, after it restarts without state, and after
// it has their reports again.
func TestLookasideServer(t *testing.T) {
	rs := replicas(t, 2)
	busy := make(chan struct{})
	rs[0].stream = func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
		if err := s.Send(answer("x")); err != nil {
			return err
		}
		select {
		case <-busy:
		case <-s.Context().Done():
		}
		return nil
	}
	at, kill := lookaside(t, "", `{kv_aware: {}}`, rs...)
	one, other := dial(t, "warmpath://"+at+"/chat"), dial(t, "warmpath://"+at+"/chat")
	connected(t, one, rs)
	connected(t, other, rs)
	var streams []grpc.ServerStreamingClient[testpb.StreamingOutputCallResponse]
	for range 4 {
		s, err := testpb.NewTestServiceClient(one).StreamingOutputCall(client.WithPin(deadline(t), rs[0].addr), prompt("x"))
		require.NoError(t, err)
		_, err = s.Recv()
		require.NoError(t, err)
		streams = append(streams, s)
	}
	sees := func(more, less float64) {
		t.Helper()
		eventually(t, "the load of the other", func() bool {
			seen := loadOn(t, other, rs[0])
			return seen >= more && seen <= less
		})
	}
	own := loadOn(t, one, rs[0])
	require.Positive(t, own)
	sees(own/2, own)

	kill()
	sees(0, 0)
	at, kill = lookaside(t, at, `{kv_aware: {}}`)
	end := time.Now().Add(time.Second)
	for time.Now().Before(end) {
		loadOn(t, other, rs[0])
		loadOn(t, one, rs[1])
	}
	kill()
	lookaside(t, at, `{kv_aware: {}}`, rs...)
	sees(own/2, own)
	close(busy)
	for _, s := range streams {
		_, err := s.Recv()
		require.Equal(t, io.EOF, err)
	}
	sees(0, 0)
}

// A channel applies the policy that its server pushes.
func TestLookasidePolicy(t *testing.T) {
	rs := replicas(t, 1)
	at, _ := lookaside(t, "", `{consistent_hash: {}}`, rs...)
	cc := dial(t, "warmpath://"+at+"/", client.WithPolicy(roundrobin.Config{}))
	var d client.Decision
	_, err := testpb.NewTestServiceClient(cc).UnaryCall(client.WithDecision(deadline(t), &d), simple("x"))
	require.NoError(t, err)
	require.Equal(t, "consistent_hash", d.Policy)
	_, err = client.New("warmpath://no-port/chat")
	require.ErrorContains(t, err, "not host:port")
}

// The application's dialects apply under a config that names none.
func TestLookasideDialects(t *testing.T) {
	rs := replicas(t, 1)
	at, _ := lookasideWith(t, "", fmt.Sprintf("    policy: {kv_aware: {}}\n    replicas: [{address: %q}]", rs[0].addr))
	own, err := requestkey.ParseDialects(json.RawMessage(dialects))
	require.NoError(t, err)
	for _, c := range []struct {
		options []grpc.DialOption
		seen    bool
	}{{nil, false}, {[]grpc.DialOption{client.WithDialects(own...)}, true}} {
		cc := dial(t, "warmpath://"+at+"/chat", c.options...)
		var d client.Decision
		_, err = testpb.NewTestServiceClient(cc).UnaryCall(client.WithDecision(deadline(t), &d), simple(strings.Repeat("x", 1000)))
		require.NoError(t, err)
		require.Equal(t, c.seen, d.PromptTokens > 0)
	}
}

// The server alone follows the engines' events, and every channel gets the cache contents from it.
func TestLookasideIndex(t *testing.T) {
	var engines []*simulated
	text := "    policy: {kv_aware: {}}\n    replicas:"
	for i := range 3 {
		e := simulate(t, "", nil)
		engines = append(engines, e)
		text += fmt.Sprintf("\n    - {id: r%d, address: %q, kv_events: %s}", i, e.feed.addr(), e.kvEvents())
	}
	at, _ := lookasideWith(t, "", text)
	tokens := make([]uint32, 1024)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	require.NoError(t, engines[1].ask("warm", tokens, 1))
	question := &enginepb.GenerateRequest{Input: &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: tokens}}}
	eventually(t, "a prompt that another client has warmed", func() bool {
		// A channel that has sent the prompt has it in its own index.
		cc, err := client.New("warmpath://"+at+"/", insecureOption())
		if err != nil {
			t.Error(err)
			return true
		}
		defer cc.Close()
		var d client.Decision
		stream, err := enginepb.NewVllmEngineClient(cc).Generate(client.WithDecision(deadline(t), &d), question)
		for err == nil {
			_, err = stream.Recv()
		}
		return d.Replica == "r1" && d.MatchedTokens >= 512
	})
}
