package server

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// silence is a policy that does not answer before the caller has gone.
func init() {
	policy.Register("silence", func(struct{}) (policy.Policy, error) {
		return policy.Policy{
			Uses: policy.CallsOut,
			Prepare: func(ctx context.Context, _ *policy.Request, _ policy.View) error {
				<-ctx.Done()
				return nil
			},
			Choose: func(_ *policy.Request, v policy.View) policy.Decision { return policy.To(v.Replicas()[0], "silence") },
		}, nil
	})
}

// faulty is a policy that panics for certain sessions.
type faulty struct{ none []int }

func (f *faulty) panics(r *policy.Request, where string) {
	switch r.Session {
	case where:
		panic("the prompt was: " + r.Prompt.Text)
	case where + " at run time":
		_ = f.none[len(r.Session)]
	}
}

func (f *faulty) prepare(_ context.Context, r *policy.Request, _ policy.View) error {
	f.panics(r, "prepare")
	return nil
}

func (f *faulty) choose(r *policy.Request, v policy.View) policy.Decision {
	f.panics(r, "choose")
	return policy.To(v.Replicas()[0], "faulty")
}

func (f *faulty) completed(r *policy.Request, _ policy.Decision, _ policy.Outcome) {
	f.panics(r, "completed")
}

func init() {
	policy.Register("faulty", func(struct{}) (policy.Policy, error) {
		f := new(faulty)
		return policy.Policy{
			Uses:    policy.UsesSession | policy.UsesPrompt | policy.CallsOut,
			Prepare: f.prepare, Choose: f.choose, Observer: policy.Observer{Completed: f.completed},
		}, nil
	})
}

// logBook is a log that several goroutines write.
type logBook struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func startLogged(t testing.TB, text string) (*fixture, *logBook) {
	t.Helper()
	log, now := new(logBook), newClock()
	s, err := New(parse(t, text), Options{Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), now: now.now})
	require.NoError(t, err)
	f := serveFixture(t, s)
	f.clock = now
	return f, log
}

const faults = `
load_interval: 10s
max_reservations: 2
deployments: {chat: {policy: {faulty: {}}, replicas: [{id: a, address: "10.0.0.1:1"}]}}
`

// A policy that panics fails the call. The server goes on, the call's room is free again, and the log has no
// secret.
func TestPanicsAreErrors(t *testing.T) {
	f, log := startLogged(t, faults)
	request := func(session string) *warmpathv1.ChooseReplicaRequest {
		return &warmpathv1.ChooseReplicaRequest{Mode: warmpathv1.PickMode_PICK_MODE_RESERVE, Key: &warmpathv1.RequestKey{
			RequestId: "same", Session: session, Prompt: &warmpathv1.RequestKey_Text{Text: "the secret"},
		}}
	}
	stream, err := f.pb.ChooseReplicas(soon(t))
	require.NoError(t, err)
	for i, session := range []string{"prepare", "choose", "prepare at run time", "choose at run time", "prepare", "choose"} {
		_, err := f.pb.ChooseReplica(soon(t), request(session))
		require.Equal(t, codes.Internal, status.Code(err), "%v", err)
		for _, wait := range []uint32{0, 1000} {
			r := request(session)
			r.WaitMs = wait
			require.NoError(t, stream.Send(&warmpathv1.ChooseReplicasRequest{Number: uint64(i), Choose: r}))
			m, err := stream.Recv()
			require.NoError(t, err)
			require.Equal(t, int32(codes.Internal), m.GetFailure().GetCode())
		}
	}
	a := f.choose(t, request("completed"))
	life := &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{{
		Reservation: a.GetReservation().GetId(), Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED,
	}}}
	_, err = f.pb.ReportLife(soon(t), life)
	require.Equal(t, codes.Internal, status.Code(err), "%v", err)
	f.choose(t, request("well"))
	require.Equal(t, map[string]int{"a": 1}, f.ongoing("chat"))
	leases := &f.deployment("chat").picks.leases
	require.Len(t, leases.byID, leases.held())

	logged := log.String()
	require.Equal(t, 19, strings.Count(logged, "a panic was caught"))
	for _, want := range []string{"interceptors_test.go", "grpc.method=ChooseReplica grpc.method_type=unary", "grpc.code=Internal", "index out of range"} {
		require.True(t, strings.Contains(logged, want), want)
	}
	require.False(t, strings.Contains(logged, "secret"))
}

// A reload logs the fields that are not in force before a restart.
func TestFieldsThatAreReadOnce(t *testing.T) {
	f, log := startLogged(t, quiet)
	require.NoError(t, f.Update(parse(t, quiet)))
	require.NotContains(t, log.String(), "read once")
	require.NoError(t, f.Update(parse(t, "listen: 127.0.0.1:1\nmax_connections: 7\nmetrics: 127.0.0.1:3\nallow_plaintext: true\ntls: {cert: c, key: k}\n"+quiet)))
	for _, field := range []string{"listen", "max_connections", "metrics", "allow_plaintext", "tls"} {
		require.Contains(t, log.String(), "field="+field+"\n")
	}
}

// A policy that panics at the end of an interval leaves no load of leases that have expired.
func TestPanicsLeaveNoLoad(t *testing.T) {
	f := start(t, strings.Replace(faults, "max_reservations: 2", "max_reservations: 20", 1))
	for range 10 {
		f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: reserve, Key: &warmpathv1.RequestKey{Session: "completed"}})
	}
	f.advance(2 * time.Minute)
	require.Panics(t, func() { f.tick("chat") })
	require.Equal(t, map[string]int{"a": 0}, f.ongoing("chat"))
}
