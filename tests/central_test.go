package tests

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// centralised is a deployment in mode central.
func centralised(policy string, rs []*replica, more ...string) string {
	text := "    mode: central\n    central_deadline: 10s\n    policy: " + policy + "\n    dialects: " + dialects + "\n    replicas:"
	for _, r := range rs {
		text += fmt.Sprintf("\n    - address: %q", r.addr)
	}
	for _, m := range more {
		text += "\n    " + m
	}
	return text
}

// asked makes a call and returns its decision.
func asked(t *testing.T, cc *grpc.ClientConn, text string) client.Decision {
	t.Helper()
	var d client.Decision
	_, err := testpb.NewTestServiceClient(cc).UnaryCall(client.WithDecision(deadline(t), &d), simple(text))
	require.NoError(t, err)
	return d
}

// untilCentral makes calls until the server decides.
func untilCentral(t *testing.T, cc *grpc.ClientConn) {
	t.Helper()
	eventually(t, "the server decides", func() bool { return asked(t, cc, "x").Reason == "central" })
}

// serverStatus is the state of a server's only deployment.
func serverStatus(t *testing.T, at string) *warmpathv1.DeploymentStatus {
	t.Helper()
	cc, err := grpc.NewClient(at, insecureOption())
	require.NoError(t, err)
	defer cc.Close()
	a, err := warmpathv1.NewStatusServiceClient(cc).GetStatus(deadline(t), new(warmpathv1.GetStatusRequest))
	require.NoError(t, err)
	return a.GetDeployments()[0]
}

// serverLoad is the load that the server itself sees on a replica, with 100 tokens for a request.
func serverLoad(t *testing.T, at string, r *replica) float64 {
	t.Helper()
	for _, s := range serverStatus(t, at).GetReplicas() {
		if s.GetAddress() == r.addr {
			return float64(s.GetQueuedTokens()) + 100*float64(s.GetOngoing())
		}
	}
	return -1
}

// With central_only the first calls of a channel wait until the server can be asked.
func TestCentralOnlyFirstCalls(t *testing.T) {
	rs := replicas(t, 2)
	deployment := strings.Replace(centralised(`{consistent_hash: {}}`, rs), "mode: central", "mode: central_only", 1)
	at, _ := lookasideWith(t, "", deployment)
	for range 20 {
		d := asked(t, dial(t, "warmpath://"+at+"/"), "x")
		require.Contains(t, []string{string(d.Reason), string(d.Rule)}, "central", "the reason may be retry: it connects")
	}
}

// The server decides for two channels that share nothing: what one sends, the other's prompt finds, by hashes alone.
func TestCentralDecides(t *testing.T) {
	rs := replicas(t, 4)
	at, _ := lookasideWith(t, "", centralised(`{kv_aware: {}}`, rs))
	one, other := dial(t, "warmpath://"+at+"/chat"), dial(t, "warmpath://"+at+"/")
	connected(t, one, rs)
	connected(t, other, rs)
	untilCentral(t, one)
	untilCentral(t, other)
	for i := range 20 {
		text := strings.Repeat(fmt.Sprintf("prompt %d ", i), 200)
		first, second := asked(t, one, text), asked(t, other, text)
		require.EqualValues(t, "central", first.Reason)
		require.EqualValues(t, "rendezvous", first.Rule)
		require.EqualValues(t, "central", second.Reason)
		require.EqualValues(t, "prefix_match", second.Rule)
		require.Equal(t, first.Replica, second.Replica)
		require.Equal(t, second.PromptTokens, second.MatchedTokens)
	}
	var d client.Decision
	s, err := testpb.NewTestServiceClient(one).StreamingOutputCall(client.WithDecision(deadline(t), &d), prompt("x"))
	require.NoError(t, err)
	_, err = s.Recv()
	require.NoError(t, err)
	_, err = s.Recv()
	require.ErrorIs(t, err, io.EOF)
	require.EqualValues(t, "central", d.Reason)
}

// A reservation lasts as long as its attempt: in full at first, without the prompt after the first message, and
// removed at the end, however the attempt ends. The client does not also report it as its own load.
func TestReservationFollowsTheCall(t *testing.T) {
	rs := replicas(t, 1)
	texts, end := make(chan string), make(chan error)
	rs[0].stream = func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
		for {
			select {
			case text := <-texts:
				if err := s.Send(answer(text)); err != nil {
					return err
				}
			case err := <-end:
				return err
			case <-s.Context().Done():
				return nil
			}
		}
	}
	deployment := centralised(`{kv_aware: {}}`, rs)
	at, _ := lookasideWith(t, "", deployment)
	cc := dial(t, "warmpath://"+at+"/")
	connected(t, cc, rs)
	untilCentral(t, cc)
	sees := func(want float64) {
		t.Helper()
		eventually(t, fmt.Sprintf("a load of %v", want), func() bool { return serverLoad(t, at, rs[0]) == want })
	}
	sees(0)
	for i, ending := range []func(func(), grpc.ServerStreamingClient[testpb.StreamingOutputCallResponse]){
		func(_ func(), s grpc.ServerStreamingClient[testpb.StreamingOutputCallResponse]) {
			end <- nil
			_, err := s.Recv()
			require.ErrorIs(t, err, io.EOF)
		},
		func(_ func(), s grpc.ServerStreamingClient[testpb.StreamingOutputCallResponse]) {
			end <- status.Error(codes.Internal, "broken")
			_, err := s.Recv()
			require.Equal(t, codes.Internal, status.Code(err))
		},
		func(cancel func(), _ grpc.ServerStreamingClient[testpb.StreamingOutputCallResponse]) { cancel() },
	} {
		ctx, cancel := context.WithCancel(deadline(t))
		s, err := testpb.NewTestServiceClient(cc).StreamingOutputCall(ctx, prompt(strings.Repeat(fmt.Sprint(i), 4000)))
		require.NoError(t, err)
		sees(1100)
		texts <- "first"
		_, err = s.Recv()
		require.NoError(t, err)
		sees(100)
		ending(cancel, s)
		sees(0)
		cancel()
	}
}

// Calls with the same request id, which is the key where there is no session, have separate reservations.
func TestCentralSameRequestID(t *testing.T) {
	rs := replicas(t, 3)
	end := make(chan struct{})
	for _, r := range rs {
		r.stream = func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			if err := s.Send(answer("x")); err != nil {
				return err
			}
			<-end
			return nil
		}
	}
	at, _ := lookasideWith(t, "", centralised(`{consistent_hash: {}}`, rs))
	cc := dial(t, "warmpath://"+at+"/")
	connected(t, cc, rs)
	untilCentral(t, cc)
	reserves := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprint(n, " reservations"), func() bool { return serverStatus(t, at).GetReservations() == uint32(n) })
	}
	reserves(0)
	ctx := metadata.AppendToOutgoingContext(deadline(t), "x-request-id", "same")
	var decisions [2]client.Decision
	var streams [2]grpc.ServerStreamingClient[testpb.StreamingOutputCallResponse]
	for i := range streams {
		var err error
		streams[i], err = testpb.NewTestServiceClient(cc).StreamingOutputCall(client.WithDecision(ctx, &decisions[i]), prompt("x"))
		require.NoError(t, err)
		_, err = streams[i].Recv()
		require.NoError(t, err)
		require.EqualValues(t, "central", decisions[i].Reason)
		require.EqualValues(t, "ring", decisions[i].Rule)
		reserves(i + 1)
	}
	require.Equal(t, decisions[0].Replica, decisions[1].Replica, "by the same key")
	close(end)
	for _, s := range streams {
		_, err := s.Recv()
		require.ErrorIs(t, err, io.EOF)
	}
	reserves(0)
}

// A failed attempt's reservation is released, and the next attempt asks for another replica.
func TestCentralRetries(t *testing.T) {
	rs := replicas(t, 3)
	deployment := centralised(`{consistent_hash: {}}`, rs)
	at, _ := lookasideWith(t, "", deployment)
	cc := dial(t, "warmpath://"+at+"/")
	connected(t, cc, rs)
	untilCentral(t, cc)
	var home client.Decision
	call := func(d *client.Decision) error {
		ctx := client.WithSession(client.WithDecision(deadline(t), d), "s")
		_, err := testpb.NewTestServiceClient(cc).UnaryCall(ctx, simple("x"))
		return err
	}
	require.NoError(t, call(&home))
	for _, r := range rs {
		if r.addr == home.Replica {
			r.unary = func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				return nil, status.Error(codes.Unavailable, "down")
			}
		}
	}
	var d client.Decision
	require.NoError(t, call(&d))
	require.Equal(t, 2, d.Attempts)
	require.EqualValues(t, "retry", d.Reason)
	require.EqualValues(t, "central", d.Rule)
	require.NotEqual(t, home.Replica, d.Replica)
	for _, r := range rs {
		eventually(t, "nothing is reserved", func() bool { return serverLoad(t, at, r) == 0 })
	}
}

// A percentage, the kill switch and a shadow policy are pushed, and take effect on calls that begin.
func TestAdoptionIsPushed(t *testing.T) {
	rs := replicas(t, 2)
	at, push := reconfigurable(t, centralised(`{consistent_hash: {}}`, rs))
	m := newMeter(t)
	cc := dial(t, "warmpath://"+at+"/", m.option)
	connected(t, cc, rs)
	untilCentral(t, cc)
	reasons := func() map[string]int {
		all := make(map[string]int)
		for i := range 100 {
			var d client.Decision
			ctx := client.WithSession(client.WithDecision(deadline(t), &d), fmt.Sprint("session", i))
			_, err := testpb.NewTestServiceClient(cc).UnaryCall(ctx, simple("x"))
			require.NoError(t, err)
			all[string(d.Reason)]++
		}
		return all
	}
	until := func(what string, ok func(map[string]int) bool) {
		t.Helper()
		eventually(t, what, func() bool { return ok(reasons()) })
	}
	require.Equal(t, map[string]int{"central": 100}, reasons())
	push(centralised(`{consistent_hash: {}}`, rs, "percentage: 30"))
	until("some of both", func(all map[string]int) bool {
		return all["central"] > 10 && all["round_robin"] > 50 && all["central"]+all["round_robin"] == 100
	})
	push(centralised(`{consistent_hash: {}}`, rs, "percentage: off"))
	until("all by turns", func(all map[string]int) bool { return all["round_robin"] == 100 })
	require.Equal(t, "round_robin", asked(t, cc, "x").Policy)
	push(strings.Replace(centralised(`{consistent_hash: {}}`, rs, "shadow_policy: {round_robin: {}}"), "mode: central", "mode: broadcast", 1))
	until("the client by itself", func(all map[string]int) bool { return all["ring"] == 100 })
	shadow := attribute.String("warmpath.shadow.policy", "round_robin")
	decided := m.sum(t, "warmpath.shadow.decisions", shadow)
	require.GreaterOrEqual(t, decided, int64(100))
	differs := m.sum(t, "warmpath.shadow.decisions", shadow, attribute.Bool("warmpath.shadow.differs", true))
	require.Positive(t, differs)
	require.Less(t, differs, decided)
	push(centralised(`{consistent_hash: {}}`, rs))
	until("the server again", func(all map[string]int) bool { return all["central"] == 100 })
}

// If all replicas are full, the call waits in the server's queue, and is served when another client's call ends.
func TestCentralQueue(t *testing.T) {
	rs := replicas(t, 1)
	end := make(chan struct{})
	rs[0].stream = func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
		if err := s.Send(answer("x")); err != nil {
			return err
		}
		<-end
		return nil
	}
	at, _ := lookasideWith(t, "", centralised(`{consistent_hash: {}}`, rs, "max_ongoing_requests: 1"))
	one, other := dial(t, "warmpath://"+at+"/"), dial(t, "warmpath://"+at+"/")
	connected(t, one, rs)
	connected(t, other, rs)
	untilCentral(t, one)
	untilCentral(t, other)
	var first client.Decision
	s, err := testpb.NewTestServiceClient(one).StreamingOutputCall(client.WithDecision(deadline(t), &first), prompt("x"))
	require.NoError(t, err)
	_, err = s.Recv()
	require.NoError(t, err)
	require.EqualValues(t, "central", first.Reason)

	done := make(chan client.Decision, 1)
	go func() {
		var d client.Decision
		_, err := testpb.NewTestServiceClient(other).UnaryCall(client.WithDecision(deadline(t), &d), simple("y"))
		if err != nil {
			t.Error(err)
		}
		done <- d
	}()
	eventually(t, "the other waits", func() bool { return serverStatus(t, at).GetQueued() == 1 })
	close(end)
	_, err = s.Recv()
	require.ErrorIs(t, err, io.EOF)
	d := <-done
	require.EqualValues(t, "central", d.Reason)
	require.Positive(t, d.Queued)
}

// The cost of a broadcast or a central decision: one call of a replica on loopback, with a prompt of 8 KB.
func BenchmarkCallOfAMode(b *testing.B) {
	for _, mode := range []string{"broadcast", "central"} {
		b.Run(mode, func(b *testing.B) {
			rs := replicas(b, 4)
			deployment := strings.Replace(centralised(`{kv_aware: {}}`, rs), "mode: central", "mode: "+mode, 1)
			at, _, _ := lookasideServer(b, "", deployment)
			cc := dial(b, "warmpath://"+at+"/")
			connected(b, cc, rs)
			stub, text := testpb.NewTestServiceClient(cc), simple(strings.Repeat("all the same ", 640))
			var d client.Decision
			ctx := client.WithDecision(b.Context(), &d)
			for ok := false; !ok; ok = mode == "broadcast" || d.Reason == "central" {
				_, err := stub.UnaryCall(ctx, text)
				require.NoError(b, err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := stub.UnaryCall(ctx, text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
