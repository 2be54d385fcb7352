package server

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const (
	goodToken = "good-0123456789abc"
	evilToken = "evil-0123456789abc"
)

// siege has two principals, each with a deployment of its own next to the shared one.
const siege = `
load_interval: 10s
max_reservations: 2000
max_connections: 1400
principals:
- {name: good, token: good-0123456789abc, deployments: [shared, goods]}
- {name: evil, token: evil-0123456789abc, deployments: [shared, evils]}
deployments:
  shared: {policy: {round_robin: {}}, replicas: [{id: a, address: "10.0.0.1:1"}, {id: b, address: "10.0.0.2:1"}]}
  goods: {policy: {round_robin: {}}, replicas: [{id: c, address: "10.0.0.3:1"}]}
  evils: {policy: {round_robin: {}}, replicas: [{id: d, address: "10.0.0.4:1"}]}
`

// Whatever one principal does is refused or bounded, and each time the other is served as before.
func TestHostilePrincipal(t *testing.T) {
	f := start(t, siege)
	good := f.with(t, goodToken)
	served := func(t *testing.T) {
		t.Helper()
		for range 50 {
			a, err := good.ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Deployment: "shared", Mode: warmpathv1.PickMode_PICK_MODE_RESERVE})
			require.NoError(t, err)
			answer, err := good.ReportLife(soon(t), &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{{
				Reservation: a.GetReservation().GetId(), Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED,
			}}})
			require.NoError(t, err)
			require.Empty(t, answer.GetUnknown())
		}
	}
	served(t)
	evil := func(t *testing.T) *grpc.ClientConn { return f.as(t, insecure.NewCredentials(), evilToken) }
	for _, attack := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"a wrong token", func(t *testing.T) {
			for i := range 200 {
				_, err := f.with(t, fmt.Sprintf("guess-%020d", i)).ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Deployment: "shared"})
				require.Equal(t, codes.Unauthenticated, status.Code(err))
			}
		}},
		{"a token of a megabyte", func(t *testing.T) {
			_, err := f.with(t, strings.Repeat("x", 1<<20)).ChooseReplica(soon(t), new(warmpathv1.ChooseReplicaRequest))
			require.Error(t, err)
		}},
		{"another's deployment", func(t *testing.T) {
			_, err := f.with(t, evilToken).ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Deployment: "goods"})
			require.Equal(t, codes.PermissionDenied, status.Code(err))
		}},
		{"100 MiB in a message", func(t *testing.T) { huge(t, evil(t)) }},
		{"10,000 streams", func(t *testing.T) { manyStreams(t, f, evil(t), 10_000) }},
		{"garbage", func(t *testing.T) {
			conn := evil(t)
			for _, method := range []string{"ChooseReplica", "ReportLife", "Register", "ChooseReplicas", "WatchReplicas", "Nothing"} {
				var out []byte
				err := conn.Invoke(soon(t), "/warmpath.v1.RoutingService/"+method, []byte("\xff\xff\xff garbage"), &out, grpc.ForceCodec(raw{}))
				require.NotContains(t, []codes.Code{codes.OK, codes.DeadlineExceeded}, status.Code(err), method)
			}
		}},
		{"never releasing", func(t *testing.T) { neverReleasing(t, f) }},
		{"watching without end", func(t *testing.T) { manyWatches(t, f) }},
	} {
		t.Run(attack.name, func(t *testing.T) {
			attack.run(t)
			served(t)
		})
	}
	f.clock.advance(time.Hour)
	f.tick("shared")
	for name, c := range f.authenticator.principals {
		require.Zero(t, c.held.Load(), name)
	}
}

func huge(t *testing.T, conn *grpc.ClientConn) {
	request, err := proto.Marshal(&warmpathv1.ChooseReplicaRequest{Deployment: "shared", Key: &warmpathv1.RequestKey{
		Prompt: &warmpathv1.RequestKey_Text{Text: strings.Repeat("x", 100<<20)},
	}})
	require.NoError(t, err)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var out []byte
	err = conn.Invoke(soon(t), warmpathv1.RoutingService_ChooseReplica_FullMethodName, request, &out, grpc.ForceCodec(raw{}))
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "received message larger than max")
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(150<<20), "the sender's own copy, and not the server's too")
}

// manyStreams opens streams over several connections; those above the principal's bound are refused.
func manyStreams(t *testing.T, f *fixture, first *grpc.ClientConn, n int) {
	conns := []*grpc.ClientConn{first}
	for range n/500 - 1 {
		conns = append(conns, f.as(t, insecure.NewCredentials(), evilToken))
	}
	for _, c := range conns { // connected before the streams, which keep the machine busy for longer than that may take
		_, err := warmpathv1.NewRoutingServiceClient(c).ReportLife(soon(t), new(warmpathv1.ReportLifeRequest))
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var refused, open sync.WaitGroup
	var mu sync.Mutex // guards count
	count := make(map[codes.Code]int)
	for i := range n {
		open.Add(1)
		refused.Go(func() {
			stream, err := warmpathv1.NewRoutingServiceClient(conns[i%len(conns)]).ChooseReplicas(ctx)
			if err == nil {
				_ = stream.Send(&warmpathv1.ChooseReplicasRequest{Choose: &warmpathv1.ChooseReplicaRequest{Deployment: "shared", Pinned: "none"}})
				_, err = stream.Recv()
			}
			mu.Lock()
			count[status.Code(err)]++
			mu.Unlock()
			open.Done()
			if err == nil {
				<-ctx.Done()
			}
		})
	}
	open.Wait()
	mu.Lock()
	require.Equal(t, map[codes.Code]int{codes.OK: 700, codes.ResourceExhausted: n - 700}, count)
	mu.Unlock()
	require.Equal(t, int64(700), f.authenticator.principals["evil"].calls.Load())
	_, err := f.with(t, goodToken).ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Deployment: "shared", Mode: query})
	require.NoError(t, err)
	cancel()
	refused.Wait()
	require.Eventually(t, func() bool { return f.authenticator.principals["evil"].calls.Load() == 0 }, time.Minute, time.Millisecond)
}

func neverReleasing(t *testing.T, f *fixture) {
	evil := f.with(t, evilToken)
	held := 0
	for _, mode := range []warmpathv1.PickMode{warmpathv1.PickMode_PICK_MODE_RESERVE, warmpathv1.PickMode_PICK_MODE_COUNT} {
		for range 1500 {
			_, err := evil.ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Deployment: "shared", Mode: mode})
			if err == nil {
				held++
				continue
			}
			require.Equal(t, codes.ResourceExhausted, status.Code(err))
		}
	}
	require.Equal(t, 1000, held, "half of max_reservations")
}

func manyWatches(t *testing.T, f *fixture) {
	evil := f.with(t, evilToken)
	watching := 0
	for i := range 500 {
		stream, err := evil.WatchReplicas(soon(t))
		require.NoError(t, err)
		require.NoError(t, stream.Send(&warmpathv1.WatchReplicasRequest{Start: &warmpathv1.WatchStart{Deployment: "shared", ClientId: fmt.Sprint(i)}}))
		if _, err := stream.Recv(); err == nil {
			watching++
		} else {
			require.Equal(t, codes.ResourceExhausted, status.Code(err))
		}
	}
	require.Equal(t, 350, watching, "a quarter of max_connections")
	stream, err := f.with(t, goodToken).WatchReplicas(soon(t))
	require.NoError(t, err)
	require.NoError(t, stream.Send(&warmpathv1.WatchReplicasRequest{Start: &warmpathv1.WatchStart{Deployment: "shared", ClientId: "1"}}))
	_, err = stream.Recv()
	require.NoError(t, err)
}
