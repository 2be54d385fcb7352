package server

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Changed files of tokens are read again. After a reload a principal that is gone is refused, and one that stays keeps
// its reservations.
func TestTokensAreReadAgain(t *testing.T) {
	dir := files{t, t.TempDir()}
	dir.write("tokens", []byte("first-0123456789\n\nsecond-0123456789\n"))
	text := "max_reservations: 2\nprincipals: [{name: x, token_file: " + dir.path("tokens") + "}, {name: z, token: zzzzzzzzzzzzzzzz}]\n" + quiet
	f := start(t, text)
	code := func(token string) codes.Code {
		_, err := f.with(t, token).ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Mode: query})
		return status.Code(err)
	}
	require.Equal(t, codes.OK, code("first-0123456789"))
	f.clock.advance(time.Second)
	f.tick("chat")
	require.Equal(t, codes.OK, code("second-0123456789"))
	f.clock.advance(time.Second)
	f.tick("chat")
	dir.write("tokens", []byte("third-0123456789"))
	require.Eventually(t, func() bool {
		_, err := f.with(t, "first-0123456789").ReportLife(soon(t), new(warmpathv1.ReportLifeRequest))
		return status.Code(err) == codes.Unauthenticated
	}, 20*time.Second, time.Millisecond)
	require.Equal(t, codes.OK, code("third-0123456789"))
	require.Equal(t, codes.ResourceExhausted, code("third-0123456789"), "its one pick still counts")

	require.NoError(t, f.Update(parse(t, strings.Replace(text, ", {name: z, token: zzzzzzzzzzzzzzzz}", "", 1))))
	require.Equal(t, codes.Unauthenticated, code("zzzzzzzzzzzzzzzz"))
	require.Equal(t, codes.ResourceExhausted, code("third-0123456789"), "after the reload, too")
	require.Error(t, f.Update(parse(t, strings.Replace(text, "tokens", "missing", 1))))
	require.Equal(t, codes.Unauthenticated, code("zzzzzzzzzzzzzzzz"), "a refused config changes nothing")
	f.clock.advance(time.Second)
	f.tick("chat")
	require.Equal(t, codes.OK, code("third-0123456789"))
}

// A stream ends with a reason soon after a reload that removes its principal, its credential, or its deployment. Others
// go on.
func TestRevokedCallersAreSentAway(t *testing.T) {
	dir := files{t, t.TempDir()}
	dir.write("tokens", []byte("kept-0123456789a\nlost-0123456789a\n"))
	text := `
load_interval: 10s
principals:
- {name: gone, token: gone-0123456789a}
- {name: less, token: less-0123456789a}
- {name: same, token: same-0123456789a, deployments: [chat, code]}
- {name: rotates, token_file: ` + dir.path("tokens") + `}
deployments: {chat: {register: true}, code: {register: true}}
`
	f := start(t, text)
	watches := make(map[string]grpc.BidiStreamingClient[warmpathv1.WatchReplicasRequest, warmpathv1.WatchReplicasResponse])
	chooses := make(map[string]grpc.BidiStreamingClient[warmpathv1.ChooseReplicasRequest, warmpathv1.ChooseReplicasResponse])
	pick := func(name, deployment string) codes.Code {
		t.Helper()
		require.NoError(t, chooses[name].Send(&warmpathv1.ChooseReplicasRequest{Choose: &warmpathv1.ChooseReplicaRequest{Deployment: deployment}}))
		m, err := chooses[name].Recv()
		require.NoError(t, err, name)
		return codes.Code(m.GetFailure().GetCode())
	}
	register := func(deployment string) {
		_, err := f.deployment(deployment).register(new(warmpathv1.RegisterRequest), replicaAt("r", "r:1"))
		require.NoError(t, err)
	}
	register("chat")
	register("code")
	opened := func(name, token, deployment string) {
		var err error
		watches[name], err = f.with(t, token).WatchReplicas(soon(t))
		require.NoError(t, err)
		require.NoError(t, watches[name].Send(&warmpathv1.WatchReplicasRequest{Start: &warmpathv1.WatchStart{Deployment: deployment, ClientId: name}}))
		_, err = watches[name].Recv()
		require.NoError(t, err)
		chooses[name], err = f.with(t, token).ChooseReplicas(soon(t))
		require.NoError(t, err)
		require.Equal(t, codes.OK, pick(name, deployment))
	}
	ends := func(name string, want codes.Code) {
		t.Helper()
		if want == codes.PermissionDenied { // of one deployment: the stream may name another
			require.Equal(t, want, pick(name, "chat"))
		} else {
			_, err := chooses[name].Recv() // without any request
			require.Equal(t, want, status.Code(err), "%s: %v", name, err)
		}
		var err error
		for err == nil {
			_, err = watches[name].Recv()
		}
		require.Equal(t, want, status.Code(err), "%s: %v", name, err)
	}
	opened("gone", "gone-0123456789a", "chat")
	opened("less", "less-0123456789a", "chat")
	opened("less elsewhere", "less-0123456789a", "code")
	opened("same", "same-0123456789a", "chat")
	opened("kept", "kept-0123456789a", "chat")
	opened("lost", "lost-0123456789a", "chat")

	require.NoError(t, f.Update(parse(t, strings.NewReplacer(
		"- {name: gone, token: gone-0123456789a}\n", "", "{name: less,", "{name: less, deployments: [code],").Replace(text))))
	ends("gone", codes.Unauthenticated)
	ends("less", codes.PermissionDenied)
	dir.write("tokens", []byte("kept-0123456789a\nnext-0123456789a\n"))
	ends("lost", codes.Unauthenticated)
	for name, deployment := range map[string]string{"less elsewhere": "code", "same": "chat", "kept": "chat"} {
		require.Equal(t, codes.OK, pick(name, deployment), name)
	}
	require.Equal(t, codes.PermissionDenied, pick("less elsewhere", "chat"))
	_, err := f.deployment("chat").register(new(warmpathv1.RegisterRequest), replicaAt("s", "s:1"))
	require.NoError(t, err)
	_, err = watches["same"].Recv()
	require.NoError(t, err)

	// Without principals all calls are unrestricted; with principals again, the streams of both kinds end.
	open := text[:strings.Index(text, "principals:")] + text[strings.Index(text, "deployments: {chat:"):]
	require.NoError(t, f.Update(parse(t, open)))
	ends("same", codes.Unauthenticated)
	opened("no token", "whatever", "chat")
	require.NoError(t, f.Update(parse(t, text)))
	ends("no token", codes.Unauthenticated)
}

func TestPrincipalsAreBounded(t *testing.T) {
	f := start(t, `
max_connections: 6
max_reservations: 8
principals:
- {name: slow, token: slow-0123456789abc, rate: 2}
- {name: few, token: few-0123456789abcd}
- {name: other, token: other-0123456789a}
`+quiet)
	slow := f.with(t, "slow-0123456789abc")
	f.authenticator.principals["slow"].rules.Load().limiter.SetLimit(0) // the burst is all there is
	passed := 0
	for range 50 {
		_, err := slow.ReportLife(soon(t), new(warmpathv1.ReportLifeRequest))
		if err == nil {
			passed++
			continue
		}
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
		require.Equal(t, "the principal slow has reached its rate (2 calls a second)", status.Convert(err).Message())
	}
	require.Equal(t, 2, passed)

	few, other := f.with(t, "few-0123456789abcd"), f.with(t, "other-0123456789a")
	reserve := &warmpathv1.ChooseReplicaRequest{Mode: warmpathv1.PickMode_PICK_MODE_RESERVE}
	var held []string
	for range 4 {
		a, err := few.ChooseReplica(soon(t), reserve)
		require.NoError(t, err)
		held = append(held, a.GetReservation().GetId())
	}
	_, err := few.ChooseReplica(soon(t), reserve)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.ErrorContains(t, err, "max_reservations")
	_, err = few.ReportLife(soon(t), &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{{
		Reservation: held[0], Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED,
	}}})
	require.NoError(t, err)
	_, err = few.ChooseReplica(soon(t), reserve)
	require.NoError(t, err)

	watch := func(id string) (grpc.BidiStreamingClient[warmpathv1.WatchReplicasRequest, warmpathv1.WatchReplicasResponse], error) {
		stream, err := few.WatchReplicas(soon(t))
		require.NoError(t, err)
		require.NoError(t, stream.Send(&warmpathv1.WatchReplicasRequest{Start: &warmpathv1.WatchStart{ClientId: id}}))
		_, err = stream.Recv()
		return stream, err
	}
	one, err := watch("1")
	require.NoError(t, err)
	_, err = watch("2")
	require.NoError(t, err)
	_, err = watch("3")
	require.ErrorContains(t, err, "has 2 watches")
	stream, err := few.ChooseReplicas(soon(t))
	require.NoError(t, err)
	require.NoError(t, stream.Send(&warmpathv1.ChooseReplicasRequest{Choose: &warmpathv1.ChooseReplicaRequest{Pinned: "no such"}}))
	_, err = stream.Recv()
	require.NoError(t, err)
	_, err = few.ReportLife(soon(t), new(warmpathv1.ReportLifeRequest))
	require.ErrorContains(t, err, "has 3 calls under way")
	require.NoError(t, one.CloseSend())
	_, err = one.Recv()
	for err == nil {
		_, err = one.Recv()
	}
	_, err = few.ReportLife(soon(t), new(warmpathv1.ReportLifeRequest))
	require.NoError(t, err)
	_, err = other.ChooseReplica(soon(t), reserve)
	require.NoError(t, err, "others have their own")
}

// A deadline on a stream does not let its principal send faster than its rate.
func TestDeadlineDoesNotAvoidTheRate(t *testing.T) {
	f := start(t, "principals: [{name: slow, token: slow-0123456789abc, rate: 2}]\n"+quiet)
	f.authenticator.principals["slow"].rules.Load().limiter.SetLimit(1e-6) // but for the burst
	stream, err := f.with(t, "slow-0123456789abc").ChooseReplicas(soon(t))
	require.NoError(t, err)
	for range 10 {
		_ = stream.Send(&warmpathv1.ChooseReplicasRequest{Lives: []*warmpathv1.LifeReport{{Reservation: "chat#x"}}})
	}
	_, err = stream.Recv()
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
}

// One principal whose watches come and go, each under another name, does not keep others from watching.
func TestWatchesThatComeAndGo(t *testing.T) {
	f := start(t, `
load_interval: 10s
max_connections: 16
principals:
- {name: evil, token: evil-0123456789abc}
- {name: good, token: good-0123456789abc}
deployments: {chat: {register: true}, code: {register: true}}
`)
	callers := map[string]warmpathv1.RoutingServiceClient{evilToken: f.with(t, evilToken), goodToken: f.with(t, goodToken)}
	names := 0
	watch := func(token, deployment string) codes.Code {
		ctx, cancel := context.WithCancel(soon(t))
		defer cancel()
		stream, err := callers[token].WatchReplicas(ctx)
		require.NoError(t, err)
		names++
		require.NoError(t, stream.Send(&warmpathv1.WatchReplicasRequest{Start: &warmpathv1.WatchStart{Deployment: deployment, ClientId: fmt.Sprint(names)}}))
		_, err = stream.Recv()
		require.NoError(t, stream.CloseSend())
		for end := err; end == nil; {
			_, end = stream.Recv()
		}
		return status.Code(err)
	}
	for range 4 { // a quarter of sixteen
		require.Equal(t, codes.OK, watch(evilToken, "chat"))
	}
	require.Equal(t, codes.ResourceExhausted, watch(evilToken, "chat"))
	names = 3
	require.Equal(t, codes.OK, watch(evilToken, "chat"), "the new watch replaces an account of its own principal")
	require.Equal(t, codes.ResourceExhausted, watch(evilToken, "chat"))
	require.Equal(t, codes.OK, watch(goodToken, "chat"))
	f.clock.advance(time.Minute)
	f.tick("chat")
	require.Equal(t, codes.OK, watch(evilToken, "chat"))
	require.Equal(t, codes.OK, watch(evilToken, "code"))
	c := *parse(t, "deployments: {code: {register: true}}")
	c.Principals = f.authenticator.config.Principals
	require.NoError(t, f.Update(&c))
	require.Equal(t, int64(1), f.authenticator.principals["evil"].accounts.Load(), "what was in a deployment that is gone")
}
