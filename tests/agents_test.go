package tests

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
)

// agentFleet is a channel with the policy consistent_hash over two replicas, and what makes the first one drain.
func agentFleet(t *testing.T) (cc *grpc.ClientConn, drain func(bool)) {
	rs := replicas(t, 2)
	a, b := policy.Attributes{ID: "a", Address: rs[0].addr}, policy.Attributes{ID: "b", Address: rs[1].addr}
	mr := newDirectory("agents", members(a, b))
	cc = dial(t, "agents:///x", grpc.WithResolvers(mr), client.WithConfig(`{"policy":{"consistent_hash":{}}}`))
	for _, id := range []string{"a", "b"} {
		eventually(t, id, func() bool {
			_, err := testpb.NewTestServiceClient(cc).UnaryCall(client.WithPin(deadline(t), id), simple(""))
			return err == nil
		})
	}
	return cc, func(on bool) {
		a.Draining = on
		mr.set(members(a, b))
	}
}

// home is the replica of a call of a session.
func home[S string | *client.Session](t *testing.T, cc *grpc.ClientConn, session S) string {
	t.Helper()
	var d client.Decision
	where(t, client.WithDecision(client.WithSession(deadline(t), session), &d), cc, "")
	return d.Replica
}

// sessionsOn are ids of n sessions whose home is a replica.
func sessionsOn(t *testing.T, cc *grpc.ClientConn, replica string, n int) (ids []string) {
	t.Helper()
	for i := 0; len(ids) < n; i++ {
		if id := fmt.Sprint("s", i); home(t, cc, id) == replica {
			ids = append(ids, id)
		}
	}
	return ids
}

// A forked session goes to the replica of its parent, whatever replica its own id hashes to.
func TestForkedSessions(t *testing.T) {
	cc, _ := agentFleet(t)
	here, there := sessionsOn(t, cc, "a", 1)[0], sessionsOn(t, cc, "b", 3)
	s := client.NewSession(here)
	require.Equal(t, "a", home(t, cc, s))
	for _, id := range there {
		child := s.Fork(id)
		require.Equal(t, "a", home(t, cc, child))
		require.Equal(t, "a", home(t, cc, child.Fork(there[0])), "and so do theirs")
		require.Equal(t, "b", home(t, cc, client.NewSession(id)), "it has no parent")
		over := client.WithSession(client.WithSession(deadline(t), child), id)
		var d client.Decision
		where(t, client.WithDecision(over, &d), cc, "")
		require.Equal(t, "b", d.Replica, "the last one that is set counts, without the parent of another")
	}
}

// A draining replica keeps its sessions until they end.
func TestSessionEnds(t *testing.T) {
	cc, drain := agentFleet(t)
	ids := sessionsOn(t, cc, "a", 3)
	ended, other := client.NewSession(ids[0]), client.NewSession(ids[1])
	require.Equal(t, "a", home(t, cc, ended))
	require.Equal(t, "a", home(t, cc, other))
	drain(true)
	eventually(t, "the replica drains", func() bool { return home(t, cc, client.NewSession(ids[0]).Fork("new")) == "b" })
	require.Equal(t, "a", home(t, cc, ended), "it is kept")
	ended.End()
	ended.End()
	client.NewSession(ids[1]).End() // has no calls, and frees nothing
	require.Equal(t, "b", home(t, cc, ended))
	require.Equal(t, "a", home(t, cc, other))
	last := metadata.AppendToOutgoingContext(deadline(t), "x-dynamo-session-id", ids[2], "x-dynamo-session-final", "true")
	var d client.Decision
	where(t, client.WithDecision(last, &d), cc, "")
	require.Equal(t, "a", d.Replica, "the last request still goes there")
	require.Equal(t, "b", home(t, cc, ids[2]))
	drain(false)
}

// In mode central the end of a session reaches the look-aside server, which frees what it keeps of it.
func TestSessionEndsAtTheServer(t *testing.T) {
	rs := replicas(t, 2)
	deployment := func(draining bool) string {
		return fmt.Sprintf("    mode: central\n    central_deadline: 10s\n    drain_grace: 5m\n"+
			"    policy: {consistent_hash: {}}\n    replicas:\n    - {address: %q, draining: %v}\n    - {address: %q}", rs[0].addr, draining, rs[1].addr)
	}
	a, b := rs[0].addr, rs[1].addr
	at, push := reconfigurable(t, deployment(false))
	cc := dial(t, "warmpath://"+at+"/chat")
	connected(t, cc, rs)
	untilCentral(t, cc)
	ids := sessionsOn(t, cc, a, 2)
	ended, other := client.NewSession(ids[0]), client.NewSession(ids[1])
	require.Equal(t, a, home(t, cc, ended))
	require.Equal(t, a, home(t, cc, other))
	push(deployment(true))
	require.Equal(t, b, home(t, cc, ended.Fork("new")), "the replica drains")
	require.Equal(t, a, home(t, cc, ended), "it is kept")
	ended.End()
	require.Equal(t, b, home(t, cc, ended), "the end is reported before the next request")
	require.Equal(t, a, home(t, cc, other))
}

// The agent headers carry sessions, and a child session goes to the replica of its parent.
func TestAgentHeaders(t *testing.T) {
	cc, _ := agentFleet(t)
	a, b := sessionsOn(t, cc, "a", 1)[0], sessionsOn(t, cc, "b", 1)[0]
	for name, tt := range map[string]struct {
		headers []string
		want    string
	}{
		"Claude Code":               {[]string{"X-Claude-Code-Session-Id", a}, "a"},
		"Claude Code, an agent":     {[]string{"x-claude-code-session-id", a, "x-claude-code-agent-id", b, "x-claude-code-parent-agent-id", b}, "a"},
		"Codex":                     {[]string{"thread-id", b}, "b"},
		"OpenCode":                  {[]string{"x-session-id", b}, "b"},
		"Dynamo":                    {[]string{"X-Dynamo-Session-ID", b}, "b"},
		"Dynamo, a child":           {[]string{"x-dynamo-session-id", b, "x-dynamo-parent-session-id", a}, "a"},
		"configured names go first": {[]string{"x-session-id", b, "x-dynamo-session-id", a, "x-dynamo-parent-session-id", a}, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			var d client.Decision
			ctx := metadata.AppendToOutgoingContext(deadline(t), tt.headers...)
			where(t, client.WithDecision(ctx, &d), cc, "")
			require.Equal(t, tt.want, d.Replica)
		})
	}
}

// A session can be used, forked and ended concurrently. Nothing keeps a session that is no longer in use.
func TestSessionsAtTheSameTime(t *testing.T) {
	cc, _ := agentFleet(t)
	s := client.NewSession("s")
	want := home(t, cc, s)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 5 {
				child := s.Fork(fmt.Sprint(i, k))
				if got := home(t, cc, child); got != want {
					t.Errorf("a child is at %s, not at %s", got, want)
				}
				child.End()
				s.End()
			}
		})
	}
	wg.Wait()
	gone := weak.Make(s)
	s = nil
	eventually(t, "the session is freed", func() bool {
		runtime.GC()
		return gone.Value() == nil
	})
}

// Every attempt carries the caller's priority in the engine's own field.
func TestPriorityInTheMessage(t *testing.T) {
	r := startLegReplica(t, "r")
	cc := dial(t, "warmpath:///"+r.addr, roundRobin())
	stub := vllmpb.NewInferenceClient(cc)
	send := func(level string) (fields []byte) {
		ctx := deadline(t)
		if level != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "x-warmpath-priority", level)
		}
		_, err := stub.Generate(ctx, request(), grpc.WaitForReady(true))
		require.NoError(t, err)
		for _, q := range r.requests() {
			fields = append(fields, q.ProtoReflect().GetUnknown()...) // of which the stub has no field 12 yet
		}
		return fields
	}
	field := protowire.AppendTag(nil, 12, protowire.VarintType)
	high := protowire.AppendVarint(slices.Clone(field), uint64(1<<64-1))
	for _, answer := range []error{nil, status.Error(codes.Unavailable, "once")} {
		failed := false
		r.instead(func(_ context.Context, q *vllmpb.GenerateRequest) (*vllmpb.GenerateResponse, error) {
			if answer != nil && !failed {
				failed = true
				return nil, answer
			}
			return r.usual(q), nil
		})
		want := slices.Clone(high)
		if answer != nil {
			want = append(want, high...)
		}
		require.Equal(t, want, send("high"))
	}
	require.Equal(t, protowire.AppendVarint(slices.Clone(field), 1), send("low"))
	require.Empty(t, send("normal"))
	require.Empty(t, send(""))
	require.Empty(t, send("urgent"), "it is no level")
}
