package tests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
)

// A channel follows its fleet file: replicas join, leave, drain, load adapters and gain capacity while the channel is
// in use.
func TestFleetFileIsFollowed(t *testing.T) {
	release := make(chan struct{})
	rs := make([]*replica, 3)
	for i := range rs {
		r := &replica{}
		r.unary = func(ctx context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			if string(q.Payload.GetBody()) == "hold" {
				<-release
			}
			return &testpb.SimpleResponse{Username: r.addr}, nil
		}
		rs[i] = start(t, r)
	}
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	write := func(entries ...string) {
		require.NoError(t, os.WriteFile(path+".new", []byte("replicas:\n- "+strings.Join(entries, "\n- ")+"\n"), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	entry := func(i int, more string) string { return fmt.Sprintf("{id: r%d, address: %q%s}", i, rs[i].addr, more) }
	write(entry(0, ""), entry(1, ""))
	h := &conns{}
	m := newMeter(t)
	cc := dial(t, "warmpath-file://"+path, client.WithConfig(`{"policy":{"round_robin":{}},"dialects":[{"methods":["`+unaryMethod+`"],"adapter":"3.2"}]}`),
		grpc.WithStatsHandler(h), m.option)
	stub := testpb.NewTestServiceClient(cc)
	serves := func(text string, want ...int) func() bool {
		return func() bool {
			got := map[string]bool{}
			for range 3 * len(rs) {
				got[where(t, deadline(t), cc, text)] = true
			}
			for _, i := range want {
				if !got[rs[i].addr] {
					return false
				}
			}
			return len(got) == len(want)
		}
	}
	eventually(t, "the first two", serves("", 0, 1))
	write(entry(0, ""), entry(1, ""), entry(2, ""))
	eventually(t, "one joins", serves("", 0, 1, 2))
	write(entry(0, ", draining: true"), entry(1, ""), entry(2, ""))
	eventually(t, "one drains", serves("", 1, 2))
	write(entry(0, ""), entry(1, ", adapters: [lora]"), entry(2, ""))
	eventually(t, "an adapter is loaded", serves("lora", 1))
	eventually(t, "others go anywhere", serves("", 0, 1, 2))
	require.EqualValues(t, 3, h.begun.Load(), "none of this touched a connection")
	write(entry(1, ", max_ongoing_requests: 1"))
	eventually(t, "two leave", serves("", 1))
	errs := make(chan error, 2)
	call := func() { _, err := stub.UnaryCall(deadline(t), simple("hold")); errs <- err }
	go call()
	eventually(t, "one is under way", func() bool { return m.ongoing(t) == 1 })
	go call()
	eventually(t, "one waits", func() bool { return m.sum(t, "warmpath.queue.length") == 1 })
	write(entry(1, ", max_ongoing_requests: 2"))
	eventually(t, "capacity grows", func() bool { return m.ongoing(t) == 2 })
	require.NoError(t, os.WriteFile(path, []byte("replicas: [{"), 0o600))
	close(release)
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
	require.True(t, serves("", 1)(), "a broken file changes nothing")
}

// A later update may declare models, although the configuration did not change.
func TestModelsDeclaredLater(t *testing.T) {
	rs := replicas(t, 2)
	a, b := policy.Attributes{ID: "a", Address: rs[0].addr}, policy.Attributes{ID: "b", Address: rs[1].addr}
	mr := newDirectory("models", members(a, b))
	cc := dial(t, "models:///x", grpc.WithResolvers(mr),
		client.WithConfig(`{"policy":{"round_robin":{}},"dialects":[{"methods":["`+unaryMethod+`"],"model":"3.2"}]}`))
	stub := testpb.NewTestServiceClient(cc)
	for _, id := range []string{"a", "b"} {
		eventually(t, id, func() bool { _, err := stub.UnaryCall(client.WithPin(deadline(t), id), simple("")); return err == nil })
	}
	a.Models, b.Models = []string{"llama"}, []string{"qwen"}
	mr.set(members(a, b))
	for range 6 {
		require.Equal(t, rs[0].addr, where(t, deadline(t), cc, "llama"))
		require.Equal(t, rs[1].addr, where(t, deadline(t), cc, "qwen"))
	}
}

// When an id moves to another address, its calls follow. When two ids swap addresses, their calls follow too.
func TestIDsMove(t *testing.T) {
	rs := replicas(t, 3)
	at := func(addrs ...string) update {
		var list []policy.Attributes
		for i, a := range addrs {
			list = append(list, policy.Attributes{ID: fmt.Sprint("r", i), Address: a})
		}
		return members(list...)
	}
	mr := newDirectory("move", at(rs[0].addr, rs[1].addr))
	cc := dial(t, "move:///x", grpc.WithResolvers(mr), roundRobin())
	goes := func(id, want string) {
		t.Helper()
		eventually(t, id, func() bool {
			reply, err := testpb.NewTestServiceClient(cc).UnaryCall(client.WithPin(deadline(t), id), simple(""))
			return err == nil && reply.Username == want
		})
	}
	goes("r0", rs[0].addr)
	goes("r1", rs[1].addr)
	for range 20 {
		mr.set(at(rs[1].addr, rs[0].addr)) // swapped: both connections stay
		require.Equal(t, rs[1].addr, where(t, client.WithPin(deadline(t), "r0"), cc, ""))
		require.Equal(t, rs[0].addr, where(t, client.WithPin(deadline(t), "r1"), cc, ""))
		mr.set(at(rs[0].addr, rs[1].addr))
		require.Equal(t, rs[0].addr, where(t, client.WithPin(deadline(t), "r0"), cc, ""))
	}
	mr.set(at(rs[2].addr, rs[1].addr))
	goes("r0", rs[2].addr)
	goes("r1", rs[1].addr)
}

// Of endpoints with the same id or the same address, only the first is used.
func TestDuplicates(t *testing.T) {
	rs := replicas(t, 2)
	mr := newDirectory("twice", members(
		policy.Attributes{ID: "a", Address: rs[0].addr},
		policy.Attributes{ID: "a", Address: rs[1].addr},
		policy.Attributes{ID: "b", Address: rs[0].addr},
		policy.Attributes{ID: "a", Address: rs[0].addr},
	))
	cc := dial(t, "twice:///x", grpc.WithResolvers(mr), roundRobin())
	for range 10 {
		require.Equal(t, rs[0].addr, where(t, deadline(t), cc, ""))
		require.Equal(t, rs[0].addr, where(t, client.WithPin(deadline(t), "a"), cc, ""))
		mr.set(members(
			policy.Attributes{ID: "a", Address: rs[0].addr},
			policy.Attributes{ID: "a", Address: rs[1].addr},
			policy.Attributes{ID: "b", Address: rs[0].addr},
		))
	}
	require.Zero(t, rs[1].calls.Load())
}

// Replicas join and leave under load: no call fails or hangs, and no reservation is left.
func TestChurnUnderLoad(t *testing.T) {
	rs := replicas(t, 5)
	mr := newDirectory("churn", state("", rs...))
	m := newMeter(t)
	cc := dial(t, "churn:///x", grpc.WithResolvers(mr), m.option, client.WithConfig(config(`{"kv_aware":{}}`, `"max_ongoing_requests":4`)))
	connected(t, cc, rs)
	stub := testpb.NewTestServiceClient(cc)
	calls := startLoad(t, 16, func(w, i int) {
		text := strings.Repeat(fmt.Sprint(w, i%10), 100)
		if _, err := stub.UnaryCall(deadlineOf(time.Minute), simple(text)); err != nil {
			t.Errorf("unary: %v", err)
		}
		if _, err := read(stub.StreamingOutputCall(deadlineOf(time.Minute), prompt(text))); err != nil {
			t.Errorf("stream: %v", err)
		}
	})
	for i := range 60 {
		calls.advance(10)
		mr.set(state("", append(append([]*replica{}, rs[i%3:i%3+2]...), rs[4])...))
	}
	calls.end()
	require.Zero(t, m.ongoing(t))
	require.Zero(t, m.sum(t, "warmpath.queue.length"))
}

// When a server closes its connections at a maximum age, the channel reconnects at once, in use or not, and no call
// fails.
func TestReconnectsAfterGoAway(t *testing.T) {
	rs := make([]*replica, 2)
	for i := range rs {
		rs[i] = start(t, &replica{}, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 50 * time.Millisecond, MaxConnectionAgeGrace: 10 * time.Second}))
	}
	h := &conns{}
	m := newMeter(t)
	cc := dial(t, target(rs...), grpc.WithStatsHandler(h), m.option, client.WithConfig(config(`{"kv_aware":{}}`)))
	connected(t, cc, rs)
	stub := testpb.NewTestServiceClient(cc)
	for begun := h.begun.Load(); h.begun.Load() < begun+10; {
		_, err := stub.UnaryCall(deadline(t), simple("x"))
		require.NoError(t, err)
		_, err = read(stub.StreamingOutputCall(deadline(t), prompt("x")))
		require.NoError(t, err)
	}
	quiet := h.begun.Load()
	eventually(t, "reconnected without calls", func() bool { return h.begun.Load() >= quiet+4 })
	require.Zero(t, m.ongoing(t))
}
