package tests

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/telemetry"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/lab/workload"
)

// A stream that cannot be resumed ends with the error of the break.
func TestNotResumed(t *testing.T) {
	engine := func(change func(q *enginepb.GenerateRequest)) proto.Message {
		q := engineStream("a", outputOf)
		change(q)
		return q
	}
	off := `{"policy":{"round_robin":{}},"max_resumes":"off"}`
	for name, c := range map[string]struct {
		config   string
		replicas int
		code     codes.Code
		request  proto.Message
		counted  int64
	}{
		"off":              {config: off, code: codes.Unavailable},
		"invalid argument": {code: codes.InvalidArgument},
		"deadline":         {code: codes.DeadlineExceeded},
		"exhausted":        {code: codes.ResourceExhausted},
		"text": {code: codes.Unavailable, request: engine(func(q *enginepb.GenerateRequest) {
			q.Input = &enginepb.GenerateRequest_Text{Text: "a prompt of several tokens"}
		})},
		"no bound": {code: codes.Unavailable, request: engine(func(q *enginepb.GenerateRequest) { q.SamplingParams = nil })},
		"unknown field": {code: codes.Unavailable, request: engine(func(q *enginepb.GenerateRequest) {
			q.SamplingParams.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 15, protowire.VarintType), 2))
		})},
		"oversize": {code: codes.Unavailable, request: engine(func(q *enginepb.GenerateRequest) {
			ids := promptIDs(5 << 20)
			q.GetTokenized().InputIds = ids
		})},
	} {
		t.Run(name, func(t *testing.T) {
			all, target := breakings(t, 3, dying(c.code, 3))
			m := newMeter(t)
			if c.config == "" {
				c.config = resuming
			}
			cc := dial(t, target, client.WithConfig(c.config), m.option)
			reached(t, cc, all)
			if c.request == nil {
				c.request = engineStream("a", outputOf)
			}
			var d client.Decision
			got := receive(client.WithDecision(toDie(t), &d), cc, c.request, nothing)
			require.Equal(t, c.code, status.Code(got.err))
			require.ErrorContains(t, got.err, "the engine is stopping")
			require.Len(t, got.messages, 3)
			require.Equal(t, d.Address, got.trailer.Get("at")[0])
			require.Zero(t, d.Resumed)
			require.Zero(t, m.sum(t, "warmpath.resumes"))
			require.Zero(t, m.ongoing(t))
		})
	}
}

// A stream whose replica was the only eligible one ends with the error of the break.
func TestNotResumedWithoutAnother(t *testing.T) {
	all, target := breakings(t, 2, dying(codes.Unavailable, 3, 0, 0))
	m := newMeter(t)
	cc := dial(t, target, client.WithConfig(resuming), m.option)
	reached(t, cc, all)
	got := receive(client.WithPin(toDie(t), all[0].addr), cc, engineStream("a", outputOf), nothing)
	require.Equal(t, codes.Unavailable, status.Code(got.err))
	require.Len(t, got.messages, 3)
	require.EqualValues(t, 3, all[0].calls.Load(), "the replica itself is tried")
	require.Zero(t, all[1].calls.Load())
	require.EqualValues(t, 1, m.sum(t, "warmpath.resumes", telemetry.KeyReason.String(telemetry.NotResumed)))
}

// A call that is cancelled while its stream is being resumed ends, and leaves no reservation.
func TestCancelWhileResuming(t *testing.T) {
	die, second := dying(codes.Unavailable, 3), make(chan struct{}, 1)
	var attempts atomic.Int64
	all, target := breakings(t, 3, func(at *breaking, ctx context.Context, i int) error {
		if md, _ := metadata.FromIncomingContext(ctx); i > 0 || len(md.Get("die")) == 0 || attempts.Add(1) == 1 {
			return die(at, ctx, i)
		}
		second <- struct{}{}
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	})
	m := newMeter(t)
	cc := dial(t, target, client.WithConfig(resuming), m.option)
	reached(t, cc, all)
	ctx, cancel := context.WithCancel(toDie(t))
	go func() {
		<-second
		cancel()
	}()
	got := receive(ctx, cc, engineStream("a", outputOf), nothing)
	require.Equal(t, codes.Canceled, status.Code(got.err))
	require.Len(t, got.messages, 3)
	eventually(t, "nothing is reserved", func() bool { return m.ongoing(t) == 0 })
}

// Recorded tokens of a stream are never exposed: the event on its span has only a replica and a count.
func TestResumeShowsNoTokens(t *testing.T) {
	rec, tp := recorder(t)
	var log logged
	all, target := breakings(t, 3, dying(codes.Unavailable, 3, 2, 1))
	cc := dial(t, target, client.WithConfig(resuming),
		client.WithLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))))
	reached(t, cc, all)
	ctx, span := tp.Tracer("test").Start(toDie(t), "call")
	got := receive(ctx, cc, inferenceStream("secret", outputOf), nothing)
	require.Equal(t, codes.Unavailable, status.Code(got.err))
	span.End()
	shown, counts := log.String(), []int64(nil)
	for _, s := range rec.Ended() {
		for _, e := range s.Events() {
			shown += fmt.Sprint(e.Name, e.Attributes)
			if e.Name == telemetry.ResumedName {
				require.Len(t, e.Attributes, 2)
				require.Equal(t, telemetry.KeyReplica, e.Attributes[0].Key)
				require.Equal(t, telemetry.KeyOutputTokens, e.Attributes[1].Key)
				counts = append(counts, e.Attributes[1].Value.AsInt64())
			}
		}
		shown += fmt.Sprint(s.Attributes(), s.Status())
	}
	require.Equal(t, []int64{3, 5}, counts)
	require.Len(t, got.messages, 6)
	for _, m := range got.messages {
		id := newTokens(m)[0]
		require.NotContains(t, shown, fmt.Sprint(id))
		require.NotContains(t, shown, workload.TokenText(id))
	}
}

// A unary call of the same service records no tokens.
func TestUnaryIsNotResumed(t *testing.T) {
	e := startEngine(t, grpcserver.Config{Virtual: true})
	cc := dial(t, "warmpath:///"+e.Addr().String(), client.WithConfig(resuming))
	var d client.Decision
	answer, err := vllmpb.NewInferenceClient(cc).Generate(client.WithDecision(deadline(t), &d), inferenceStream("a", outputOf))
	require.NoError(t, err)
	require.True(t, checkOutput("a", answer.GetOutputs().GetTokenIds(), outputOf))
	require.Zero(t, d.Resumed)
	require.Equal(t, 1, d.Attempts)
}

// preparing is called in each Prepare of the policy preparing_of_tests.
var preparing atomic.Pointer[func(*policy.Request)]

func init() {
	policy.Register("preparing_of_tests", func(struct{}) (policy.Policy, error) {
		return policy.Policy{
			Prepare: func(_ context.Context, q *policy.Request, _ policy.View) error {
				if f := preparing.Load(); f != nil {
					(*f)(q)
				}
				return nil
			},
			Choose: func(q *policy.Request, v policy.View) policy.Decision {
				return policy.To(v.LeastLoaded(q), policy.ReasonLeastLoaded)
			},
		}, nil
	})
}

// A call that ends while a replica is reserved for the rest of its stream leaves no reservation behind.
func TestResumeOfACallThatEnds(t *testing.T) {
	all, target := breakings(t, 2, dying(codes.Unavailable, 3))
	m := newMeter(t)
	cc := dial(t, target, client.WithConfig(strings.Replace(resuming, "round_robin", "preparing_of_tests", 1)), m.option)
	reached(t, cc, all)
	ctx, cancel := context.WithCancel(toDie(t))
	finished := make(chan struct{})
	ends := func(q *policy.Request) {
		if q.Attempt() > 1 {
			cancel()
			<-finished
		}
	}
	preparing.Store(&ends)
	defer preparing.Store(nil)
	s, err := enginepb.NewVllmEngineClient(cc).Generate(ctx, engineStream("a", outputOf),
		grpc.OnFinish(func(error) { close(finished) }))
	for err == nil {
		_, err = s.Recv()
	}
	require.Equal(t, codes.Canceled, status.Code(err))
	eventually(t, "an end of all reservations", func() bool { return m.ongoing(t) == 0 })
}
