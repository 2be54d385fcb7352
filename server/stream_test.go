package server

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

func TestStream(t *testing.T) {
	f := start(t, several)
	stream, err := f.pb.ChooseReplicas(soon(t))
	require.NoError(t, err)
	ask := func(number uint64, r *warmpathv1.ChooseReplicaRequest, lives ...*warmpathv1.LifeReport) {
		require.NoError(t, stream.Send(&warmpathv1.ChooseReplicasRequest{Number: number, Choose: r, Lives: lives}))
	}
	next := func(number uint64) *warmpathv1.ChooseReplicasResponse {
		t.Helper()
		m, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, number, m.GetNumber())
		return m
	}
	ask(7, &warmpathv1.ChooseReplicaRequest{Deployment: "chat"})
	require.Equal(t, "a", next(7).GetChosen().GetReplica().GetId())
	ask(8, &warmpathv1.ChooseReplicaRequest{Deployment: "none"})
	require.EqualValues(t, codes.NotFound, next(8).GetFailure().GetCode(), "and the stream goes on")
	ask(9, &warmpathv1.ChooseReplicaRequest{Deployment: "code", Mode: reserve})
	held := next(9).GetChosen().GetReservation()
	require.NotEmpty(t, held.GetId())

	// A request that waits does not delay the others; a report on the same stream makes room for it.
	ask(10, &warmpathv1.ChooseReplicaRequest{Deployment: "code", Mode: reserve, WaitMs: 60_000})
	ask(11, &warmpathv1.ChooseReplicaRequest{Deployment: "chat"})
	next(11)
	ask(12, nil, &warmpathv1.LifeReport{Reservation: held.GetId(), Stage: released})
	held = next(10).GetChosen().GetReservation()

	// A client that has closed its half of the stream still gets its answers.
	ask(13, &warmpathv1.ChooseReplicaRequest{Deployment: "code", WaitMs: 60_000})
	require.NoError(t, stream.CloseSend())
	router := f.deployment("code").hosted.Load().router
	require.Eventually(t, func() bool { return router.Queued() == 1 }, 20*time.Second, time.Millisecond)
	require.True(t, f.report(t, held.GetId(), released))
	require.Equal(t, "b", next(13).GetChosen().GetReplica().GetId())
	_, err = stream.Recv()
	require.Equal(t, io.EOF, err)
}

func TestStreamEndsWithItsWaiters(t *testing.T) {
	f := start(t, several)
	f.choose(t, &warmpathv1.ChooseReplicaRequest{Deployment: "code"})
	ctx, cancel := context.WithCancel(soon(t))
	stream, err := f.pb.ChooseReplicas(ctx)
	require.NoError(t, err)
	require.NoError(t, stream.Send(&warmpathv1.ChooseReplicasRequest{Choose: &warmpathv1.ChooseReplicaRequest{Deployment: "code", WaitMs: 1 << 30}}))
	require.NoError(t, stream.Send(&warmpathv1.ChooseReplicasRequest{Choose: &warmpathv1.ChooseReplicaRequest{Deployment: "chat"}}))
	_, err = stream.Recv()
	require.NoError(t, err)
	cancel()
	_, err = stream.Recv()
	require.Equal(t, codes.Canceled, status.Code(err))
}

// A request that waits while a reload takes the deployment away from its principal fails, and reserves nothing.
func TestWaiterWithoutItsDeployment(t *testing.T) {
	text := "principals: [{name: one, token: xxxxxxxxxxxxxxxx, deployments: [chat, code]}, {name: two, token: yyyyyyyyyyyyyyyy}]\n" + several
	f := start(t, text)
	y := f.with(t, "yyyyyyyyyyyyyyyy")
	first, err := y.ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Deployment: "code", Mode: reserve})
	require.NoError(t, err)
	stream, err := f.with(t, "xxxxxxxxxxxxxxxx").ChooseReplicas(soon(t))
	require.NoError(t, err)
	require.NoError(t, stream.Send(&warmpathv1.ChooseReplicasRequest{Choose: &warmpathv1.ChooseReplicaRequest{
		Deployment: "code", Mode: reserve, WaitMs: 60_000, Key: &warmpathv1.RequestKey{RequestId: "r"},
	}}))
	d := f.deployment("code")
	require.Eventually(t, func() bool { return d.hosted.Load().router.Queued() == 1 }, 20*time.Second, time.Millisecond)
	require.NoError(t, f.Update(parse(t, strings.Replace(text, "[chat, code]", "[chat]", 1))))
	_, err = y.ReportLife(soon(t), &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{{
		Reservation: first.GetReservation().GetId(), Stage: released,
	}}})
	require.NoError(t, err)
	m, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, codes.PermissionDenied, codes.Code(m.GetFailure().GetCode()), "%v", m)
	require.Zero(t, d.picks.leases.held())
	require.Zero(t, d.hosted.Load().router.View().Replicas()[0].Ongoing())
}
