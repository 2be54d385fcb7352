package tests

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	sglangpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/sglang/grpc/scheduler"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
)

// apart is a deployment in mode central of replicas with roles. Those that prefill are so much faster that every
// request is split.
func apart(mode string, prefills, decodes []string) string {
	text := "    mode: " + mode + "\n    central_deadline: 10s\n    policy: {kv_aware: {}}\n    replicas:"
	for i, addr := range prefills {
		text += fmt.Sprintf("\n    - {id: p%d, address: %q, role: prefill, weight: 100, kv_bootstrap: \"10.0.0.9:7000\"}", i, addr)
	}
	for i, addr := range decodes {
		text += fmt.Sprintf("\n    - {id: d%d, address: %q, role: decode, weight: 1}", i, addr)
	}
	return text
}

// The server decides on both legs and reserves both. The client sends them. At the end no reservation is left at
// either.
func TestCentralLegs(t *testing.T) {
	f := &legFleet{by: map[string]*legReplica{}, m: newMeter(t)}
	addrs := func(ids ...string) (all []string) {
		for _, id := range ids {
			f.by[id] = startLegReplica(t, id)
			all = append(all, f.by[id].addr)
		}
		return all
	}
	at, _ := lookasideWith(t, "", apart("central", addrs("p0", "p1"), addrs("d0", "d1", "d2")))
	f.cc = dial(t, "warmpath://"+at+"/", f.m.option)
	eventually(t, "a decision of the server", func() bool {
		_, d, err := f.call(t, deadline(t), request())
		return err == nil && d.Reason == policy.ReasonCentral
	})
	f.splits(t)
	unreserved := func() {
		t.Helper()
		f.idle(t)
		eventually(t, "no reservation at the server", func() bool { return serverStatus(t, at).GetReservations() == 0 })
	}
	unreserved()

	q := request()
	last, d, err := f.call(t, deadline(t), q)
	require.NoError(t, err)
	requireLegs(t, f, q, last, d)
	require.EqualValues(t, "central", d.Reason)
	require.EqualValues(t, "decode", d.Rule)
	unreserved()

	var failed atomic.Bool // the decode leg, once: the server names another replica for this leg alone
	for id, r := range f.by {
		r.instead(func(_ context.Context, q *vllmpb.GenerateRequest) (*vllmpb.GenerateResponse, error) {
			if id[0] == 'd' && failed.CompareAndSwap(false, true) {
				return nil, status.Error(codes.ResourceExhausted, "full")
			}
			return r.usual(q), nil
		})
	}
	_, d, err = f.call(t, deadline(t), request())
	require.NoError(t, err)
	require.Equal(t, 2, d.Attempts)
	require.EqualValues(t, "central", d.Rule)
	n := map[string]int{}
	for id, r := range f.by {
		n[id[:1]] += len(r.requests())
	}
	require.Equal(t, map[string]int{"p": 1, "d": 2}, n)
	unreserved()
}

// A server also serves replicas that refuse unsplit requests in pairs.
func TestCentralPairOnly(t *testing.T) {
	for _, mode := range []string{"central", "central_only"} {
		t.Run(mode, func(t *testing.T) {
			f := &roomFleet{p: &roomReplica{legs: make(chan roomLeg)}, d: &roomReplica{legs: make(chan roomLeg)}, m: newMeter(t)}
			prefills, _ := serveLegs(t, func(s *grpc.Server) { sglangpb.RegisterSglangSchedulerServer(s, f.p) })
			decodes, _ := serveLegs(t, func(s *grpc.Server) { sglangpb.RegisterSglangSchedulerServer(s, f.d) })
			at, _ := lookasideWith(t, "", apart(mode, []string{prefills}, []string{decodes}))
			f.cc = dial(t, "warmpath://"+at+"/", f.m.option)
			f.splits(t, policy.ReasonCentral)
			var d client.Decision
			result := f.call(deadline(t), &d)
			p, q := f.legs(t)
			p.answers(nil)
			q.answers(nil)
			require.NoError(t, <-result)
			require.Equal(t, "p0", d.Prefill)
			require.Equal(t, "d0", d.Replica)
			require.EqualValues(t, "central", d.Reason)
			f.idle(t)
			eventually(t, "no reservation at the server", func() bool { return serverStatus(t, at).GetReservations() == 0 })
		})
	}
}
