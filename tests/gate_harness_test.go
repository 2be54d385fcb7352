package tests

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/client"
)

// A gate is a replica whose calls wait until the test opens it. It counts the calls cancelled meanwhile.
type gate struct {
	*replica
	entered  chan struct{}
	open     chan struct{}
	inside   atomic.Int64 // calls that wait
	went     atomic.Int64 // calls cancelled while they waited
	messages int
	early    bool // headers before the gate
}

func startGate(t testing.TB, messages int) *gate {
	g := &gate{entered: make(chan struct{}, 1000), open: make(chan struct{}), messages: messages}
	wait := func(ctx context.Context) error {
		g.inside.Add(1)
		defer g.inside.Add(-1)
		g.entered <- struct{}{}
		select {
		case <-g.open:
			return nil
		case <-ctx.Done():
			g.went.Add(1)
			return ctx.Err()
		}
	}
	g.replica = start(t, &replica{
		unary: func(ctx context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			if len(q.Payload.Body) > 0 {
				if err := wait(ctx); err != nil {
					return nil, err
				}
			}
			return &testpb.SimpleResponse{Username: g.addr}, nil
		},
		stream: func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			if g.early {
				if err := s.SendHeader(metadata.Pairs("from", g.addr)); err != nil {
					return err
				}
			}
			if err := wait(s.Context()); err != nil {
				return err
			}
			for range g.messages {
				if err := s.Send(answer(g.addr)); err != nil {
					return err
				}
			}
			return nil
		},
	})
	return g
}

// gates is a fleet of gates, in the order of its session.
type gates struct {
	cc      *grpc.ClientConn
	all     []*gate
	session string
	*meter
}

func startGates(t *testing.T, n, messages int, more ...string) *gates {
	t.Helper()
	g := &gates{meter: newMeter(t), session: "s"}
	rs := make([]*replica, n)
	for i := range rs {
		g.all = append(g.all, startGate(t, messages))
		rs[i] = g.all[i].replica
	}
	g.cc = dial(t, target(rs...), client.WithConfig(config(`{"consistent_hash":{}}`, more...)), g.option)
	order := ringOrder(t, rs, g.session)
	slices.SortFunc(g.all, func(a, b *gate) int { return slices.Index(order, a.addr) - slices.Index(order, b.addr) })
	connected(t, g.cc, rs)
	return g
}

type result struct {
	from     []string // the address that sent each message
	err      error
	decision client.Decision
}

// call starts a call in a goroutine.
func (g *gates) call(t *testing.T, kind string) <-chan result {
	done := make(chan result, 1)
	go func() {
		var r result
		ctx := client.WithDecision(client.WithSession(deadline(t), g.session), &r.decision)
		stub := testpb.NewTestServiceClient(g.cc)
		if kind == "unary" {
			var reply *testpb.SimpleResponse
			if reply, r.err = stub.UnaryCall(ctx, simple("a")); r.err == nil {
				r.from = []string{reply.Username}
			}
		} else {
			s, err := stub.StreamingOutputCall(ctx, prompt("a"))
			for err == nil {
				var m *testpb.StreamingOutputCallResponse
				if m, err = s.Recv(); err == nil {
					r.from = append(r.from, string(m.Payload.Body))
				}
			}
			r.err = ignoreEOF(err)
		}
		done <- r
	}()
	return done
}

func (g *gates) messages(kind string, from *gate) []string {
	if kind == "unary" {
		return []string{from.addr}
	}
	return slices.Repeat([]string{from.addr}, from.messages)
}

// noneWaitAt waits until the calls that wait at a gate have been cancelled.
func (g *gates) noneWaitAt(t *testing.T, x *gate) {
	t.Helper()
	eventually(t, "no call waits there", func() bool { return x.inside.Load() == 0 })
}

// idle waits until nothing is reserved.
func (g *gates) idle(t *testing.T) {
	t.Helper()
	eventually(t, "nothing is reserved", func() bool { return g.ongoing(t) == 0 })
}
