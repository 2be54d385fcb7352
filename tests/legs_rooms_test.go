package tests

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	sglangpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/sglang/grpc/scheduler"
)

// A roomLeg is a leg of a request whose legs start at once.
type roomLeg struct {
	ctx context.Context
	q   *sglangpb.GenerateRequest
	end chan error // its status, nil after an answer
}

// answers ends the leg with a status, unless the client ends it first.
func (l roomLeg) answers(err error) {
	select {
	case l.end <- err:
	case <-l.ctx.Done():
	}
}

// A roomReplica sends each leg that it gets to the test.
type roomReplica struct {
	sglangpb.UnimplementedSglangSchedulerServer
	legs chan roomLeg
}

func (r *roomReplica) Generate(q *sglangpb.GenerateRequest, s grpc.ServerStreamingServer[sglangpb.GenerateResponse]) error {
	leg := roomLeg{s.Context(), q, make(chan error)}
	select {
	case r.legs <- leg:
	case <-s.Context().Done():
		return s.Context().Err()
	}
	select {
	case err := <-leg.end:
		if err != nil {
			return err
		}
		return s.Send(&sglangpb.GenerateResponse{RequestId: q.RequestId})
	case <-s.Context().Done():
		return s.Context().Err()
	}
}

// A roomFleet is a channel to a prefill and a decode replica. A third replica has no partner.
type roomFleet struct {
	cc   *grpc.ClientConn
	p, d *roomReplica
	m    *meter
}

func startRoomFleet(t testing.TB, opts ...grpc.DialOption) *roomFleet {
	t.Helper()
	return startRankedRooms(t, `{"kv_aware":{}}`, 0, opts...)
}

// startRankedRooms is startRoomFleet with a policy, and so many data-parallel ranks of the prefill replica.
func startRankedRooms(t testing.TB, policyConfig string, ranks int, opts ...grpc.DialOption) *roomFleet {
	t.Helper()
	f := &roomFleet{p: &roomReplica{legs: make(chan roomLeg)}, d: &roomReplica{legs: make(chan roomLeg)}, m: newMeter(t)}
	prefills, _ := serveLegs(t, func(s *grpc.Server) { sglangpb.RegisterSglangSchedulerServer(s, f.p) })
	decodes, _ := serveLegs(t, func(s *grpc.Server) { sglangpb.RegisterSglangSchedulerServer(s, f.d) })
	apart, _ := serveLegs(t, func(*grpc.Server) {})
	f.cc = dial(t, "rooms:///x", append([]grpc.DialOption{grpc.WithResolvers(newDirectory("rooms", members(
		policy.Attributes{ID: "p", Address: prefills, Role: policy.RolePrefill, Weight: 100, KVBootstrap: "10.0.0.9:7000", Ranks: ranks},
		policy.Attributes{ID: "d", Address: decodes, Role: policy.RoleDecode, Weight: 1},
		policy.Attributes{ID: "e", Address: apart, Role: policy.RoleDecode, Pair: "other"},
	))), client.WithConfig(config(policyConfig)), f.m.option}, opts...)...)
	f.splits(t)
	return f
}

// splits waits until a call is split, for the given reason if there is one.
func (f *roomFleet) splits(t testing.TB, reasons ...policy.Reason) {
	t.Helper()
	eventually(t, "both connections", func() bool {
		var d client.Decision
		result, split := f.call(deadline(t), &d), false
		for {
			select {
			case leg := <-f.p.legs:
				leg.answers(nil)
			case leg := <-f.d.legs:
				split = leg.q.GetDisaggregatedParams() != nil
				leg.answers(nil)
			case err := <-result:
				return err == nil && split && (len(reasons) == 0 || d.Reason == reasons[0])
			}
		}
	})
}

// call starts a call, and returns the channel of its result.
func (f *roomFleet) call(ctx context.Context, d *client.Decision) <-chan error {
	if d != nil {
		ctx = client.WithDecision(ctx, d)
	}
	result := make(chan error, 1)
	ids := request().GetTokenIds().Ids
	go func() {
		s, err := sglangpb.NewSglangSchedulerClient(f.cc).Generate(ctx, &sglangpb.GenerateRequest{
			RequestId: "r", Tokenized: &sglangpb.TokenizedInput{InputIds: ids},
		})
		for err == nil {
			_, err = s.Recv()
		}
		if err == io.EOF {
			err = nil
		}
		result <- err
	}()
	return result
}

// legs returns the two legs that meet in one room. Legs of ended attempts may arrive before and between them.
func (f *roomFleet) legs(t testing.TB) (p, d roomLeg) {
	t.Helper()
	late := time.After(30 * time.Second)
	var ps, ds []roomLeg
	for {
		select {
		case leg := <-f.p.legs:
			ps = append(ps, leg)
		case leg := <-f.d.legs:
			ds = append(ds, leg)
		case <-late:
			t.Fatal("no legs came")
		}
		for _, p := range ps {
			for _, d := range ds {
				if proto.Equal(p.q.DisaggregatedParams, d.q.DisaggregatedParams) {
					return p, d
				}
			}
		}
	}
}

func (f *roomFleet) idle(t testing.TB) {
	t.Helper()
	eventually(t, "an end of all reservations", func() bool { return f.m.ongoing(t) == 0 })
}

// Both legs start at once, in one room.
func TestLegsMeetInARoom(t *testing.T) {
	f := startRoomFleet(t)
	var d client.Decision
	result := f.call(deadline(t), &d)
	p, q := f.legs(t)
	require.True(t, proto.Equal(p.q, q.q))
	room := p.q.DisaggregatedParams
	require.Equal(t, "10.0.0.9", room.BootstrapHost)
	require.EqualValues(t, 7000, room.BootstrapPort)
	require.Positive(t, room.BootstrapRoom)
	p.answers(nil)
	q.answers(nil)
	require.NoError(t, <-result)
	require.Equal(t, "p", d.Prefill)
	require.Equal(t, "d", d.Replica)
	f.idle(t)
}

// Engines that read no rank of a leg read it out of the room.
func TestTheRoomTellsTheRankOfPrefill(t *testing.T) {
	const ranks = 3
	f := startRankedRooms(t, `{"kv_aware":{}}`, ranks)
	for range 12 {
		result := f.call(deadline(t), nil)
		p, q := f.legs(t)
		rank := p.q.DataParallelRank
		require.Equal(t, rank, p.q.DisaggregatedParams.BootstrapRoom%ranks)
		p.answers(nil)
		q.answers(nil)
		require.NoError(t, <-result)
	}
	f.idle(t)
}

// If one leg fails, the other one ends, and both start again in another room.
func TestLegsLeaveTheRoom(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fails func(p, d roomLeg) (ends roomLeg)
	}{
		{"prefill", func(p, d roomLeg) roomLeg { p.answers(status.Error(codes.Unavailable, "down")); return d }},
		{"decode", func(p, d roomLeg) roomLeg { d.answers(status.Error(codes.Unavailable, "down")); return p }},
		{"transfer", func(p, d roomLeg) roomLeg { d.answers(status.Error(codes.Internal, "no KV")); return p }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := startRoomFleet(t)
			var d client.Decision
			result := f.call(deadline(t), &d)
			p, q := f.legs(t)
			<-tt.fails(p, q).ctx.Done()
			p2, q2 := f.legs(t)
			require.True(t, proto.Equal(p2.q, q2.q))
			require.NotEqual(t, p.q.DisaggregatedParams.BootstrapRoom, p2.q.DisaggregatedParams.BootstrapRoom)
			p2.answers(nil)
			q2.answers(nil)
			require.NoError(t, <-result)
			require.Equal(t, 2, d.Attempts)
			f.idle(t)
		})
	}
}

// A call that is cancelled ends at once, and so does its prefill leg. Its decode leg goes on until the first message.
func TestLegsDrainDecode(t *testing.T) {
	f := startRoomFleet(t)
	ctx, cancel := context.WithCancel(deadline(t))
	result := f.call(ctx, nil)
	p, q := f.legs(t)
	cancel()
	require.Equal(t, codes.Canceled, status.Code(<-result))
	<-p.ctx.Done()
	select {
	case q.end <- nil:
	case <-q.ctx.Done():
		t.Fatal("the decode leg was cut off")
	}
	f.idle(t)
}

// A prefill leg may fail when the first message arrives. The next attempt starts after gRPC has ended the decode leg,
// and so it has both legs too.
func TestLegsPrefillFailsAtTheFirstMessage(t *testing.T) {
	type failing struct{} // the key of a context: the prefill legs of the call that are to fail
	f := startRoomFleet(t, client.WithConfig(config(`{"kv_aware":{}}`, `"max_attempts":2`, `"retry_ratio":"off"`,
		`"ejection":{"failures":"off"}`, `"backoff":{"initial":"1us","maximum":"1us"}`)), opening(
		func(ctx context.Context, open func(context.Context) (grpc.ClientStream, error)) (grpc.ClientStream, error) {
			s, err := open(ctx)
			if err != nil {
				return nil, err
			}
			fails, _ := ctx.Value(failing{}).(chan roomLeg)
			return notified{s, func() {
				select {
				case p := <-fails:
					p.answers(status.Error(codes.Unavailable, "down"))
					<-s.Context().Done()
				default:
				}
			}}, nil
		}))
	for range 100 {
		fails := make(chan roomLeg, 1)
		result := f.call(context.WithValue(deadline(t), failing{}, fails), nil)
		p, d := f.legs(t)
		fails <- p
		d.answers(nil)
		p, d = f.legs(t)
		p.answers(nil)
		d.answers(nil)
		require.NoError(t, <-result)
	}
	f.idle(t)
}
