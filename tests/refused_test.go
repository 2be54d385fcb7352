package tests

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/client"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// bounded is a replica that takes a number of unary calls at once and refuses the others with warmpath's trailer. The
// calls end when the test releases them.
type bounded struct {
	*replica
	ongoing, refusals atomic.Int64
	end               chan struct{} // closed when the calls may end
}

func startBounded(t *testing.T, most int64) *bounded {
	t.Helper()
	b := &bounded{end: make(chan struct{})}
	raw, err := proto.Marshal(&warmpathv1.Rejection{Ongoing: uint32(most), MaxOngoing: uint32(max(most, 1))})
	require.NoError(t, err)
	b.replica = start(t, &replica{unary: func(ctx context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		if len(q.GetPayload().GetBody()) == 0 {
			return &testpb.SimpleResponse{}, nil
		}
		defer b.ongoing.Add(-1)
		if b.ongoing.Add(1) > most {
			b.refusals.Add(1)
			_ = grpc.SetTrailer(ctx, metadata.Pairs(warmpathv1.TrailerRejection, string(raw)))
			return nil, status.Error(codes.ResourceExhausted, "busy")
		}
		select {
		case <-b.end:
			return &testpb.SimpleResponse{Username: b.addr}, nil
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}})
	return b
}

// A refusal by a full replica is no failure: the call goes on until a replica has room.
func TestRefusedCallsAreServedInTheEnd(t *testing.T) {
	for _, policy := range []string{"round_robin", "power_of_two_choices", "consistent_hash", "kv_aware"} {
		t.Run(policy, func(t *testing.T) {
			const calls = 24
			a, b := startBounded(t, 2), startBounded(t, 2)
			m := newMeter(t)
			cc := dial(t, target(a.replica, b.replica), client.WithConfig(config(`{"`+policy+`":{}}`)), m.option)
			connectedExcept(t, cc, []*replica{a.replica, b.replica})
			stub := testpb.NewTestServiceClient(cc)
			var all sync.WaitGroup
			var served atomic.Int64
			for range calls {
				all.Go(func() {
					_, err := stub.UnaryCall(deadline(t), simple("a"))
					if err != nil {
						t.Error(err)
					}
					served.Add(1)
				})
			}
			eventually(t, "all are full", func() bool {
				return a.ongoing.Load() >= 2 && b.ongoing.Load() >= 2 && a.refusals.Load()+b.refusals.Load() > 0
			})
			close(a.end)
			close(b.end)
			all.Wait()
			require.EqualValues(t, calls, served.Load())
			require.Zero(t, m.ongoing(t))
		})
	}
}

// A session's calls go only to its replica and the fallbacks of the ring.
func TestRefusedStayWithinTheFallbacks(t *testing.T) {
	var bs []*bounded
	var rs []*replica
	for range 5 {
		b := startBounded(t, 0)
		bs, rs = append(bs, b), append(rs, b.replica)
	}
	cc := dial(t, target(rs...), client.WithConfig(config(`{"consistent_hash":{"num_fallback_replicas":1}}`)))
	connectedExcept(t, cc, rs)
	mine := ringOrder(t, rs, "s")[:2]
	ctx, cancel := context.WithCancel(client.WithSession(context.Background(), "s"))
	done := make(chan error)
	go func() {
		_, err := testpb.NewTestServiceClient(cc).UnaryCall(ctx, simple("a"))
		done <- err
	}()
	within := func(want bool) (n int64) {
		for _, b := range bs {
			if slices.Contains(mine, b.addr) == want {
				n += b.refusals.Load()
			}
		}
		return n
	}
	eventually(t, "it was tried again", func() bool { return within(true) >= 6 })
	cancel()
	require.Equal(t, codes.Canceled, status.Code(<-done), "Issue 12.14: also between two attempts")
	require.Zero(t, within(false))
	for _, b := range bs {
		eventually(t, "nothing is under way", func() bool { return b.ongoing.Load() == 0 })
	}
}

// While one replica has room, a replica that reported that it is full is passed over. Of many sequential calls, few
// are refused.
func TestReportedFullIsPassedOver(t *testing.T) {
	for _, policy := range []string{"round_robin", "power_of_two_choices", "consistent_hash", "kv_aware"} {
		t.Run(policy, func(t *testing.T) {
			full, good := startBounded(t, 0), start(t, &replica{})
			third := start(t, &replica{})
			cc := dial(t, target(full.replica, good, third), client.WithConfig(config(`{"`+policy+`":{}}`)))
			connectedExcept(t, cc, []*replica{full.replica, good, third})
			began, before := time.Now(), full.refusals.Load()
			for range 300 {
				ctx := metadata.AppendToOutgoingContext(deadline(t), "session_id", sessionStartingAt(t, []*replica{full.replica, good, third}, full.addr))
				_, err := testpb.NewTestServiceClient(cc).UnaryCall(ctx, simple("a"))
				require.NoError(t, err)
			}
			require.LessOrEqual(t, full.refusals.Load()-before, int64(time.Since(began)/(25*time.Millisecond))+1, "each lasts 25 ms or more")
		})
	}
}

// sessionStartingAt finds a session for which the given replica is first on the ring.
func sessionStartingAt(t *testing.T, rs []*replica, first string) string {
	t.Helper()
	for i := range 1000 {
		session := string(rune('a'+i%26)) + string(rune('a'+i/26))
		if ringOrder(t, rs, session)[0] == first {
			return session
		}
	}
	t.Fatal("no such session")
	return ""
}
