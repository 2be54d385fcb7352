package tests

import (
	"context"
	"io"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/client"
)

type idKey struct{}

// ended is a stream whose methods are called while it ends and after that. What it returns is to be of its own call.
type ended struct {
	grpc.ClientStream
	t    *testing.T
	id   string
	over atomic.Bool // RecvMsg has returned the end
}

// look calls a method that may be called at any time.
func (e *ended) look() {
	switch rand.N(3) {
	case 0:
		assert.Equal(e.t, e.id, e.Context().Value(idKey{}))
	case 1:
		md, err := e.Header()
		assert.NoError(e.t, err)
		assert.Equal(e.t, []string{e.id}, md["id"])
	default:
		if e.over.Load() { // gRPC allows it only then
			assert.Equal(e.t, []string{e.id}, e.Trailer()["id"])
		}
	}
}

// receive receives all, and the end again and again.
func (e *ended) receive(d *client.Decision) {
	for range 1 + rand.N(4) {
		for m := (&testpb.StreamingOutputCallResponse{}); ; {
			err := e.RecvMsg(m)
			if err != nil {
				assert.Equal(e.t, io.EOF, err)
				break
			}
			assert.Equal(e.t, e.id+"@"+d.Replica, string(m.Payload.Body))
		}
		e.over.Store(true)
	}
}

// send sends n messages, and after the end some that must fail.
func (e *ended) send(n int) {
	for range n {
		if e.SendMsg(prompt(e.id)) != nil {
			break
		}
	}
	assert.NoError(e.t, e.CloseSend())
	for !e.over.Load() {
		e.look()
	}
	for range rand.N(4) {
		assert.Error(e.t, e.SendMsg(prompt(e.id)))
		assert.NoError(e.t, e.CloseSend())
	}
}

// Calls use the memory of calls that have ended. Methods of an ended stream touch no other call, however they meet the
// end.
func TestMethodsAtTheEndOfStreams(t *testing.T) {
	rs := make([]*replica, 3)
	for i := range rs {
		r := &replica{}
		serve := func(s grpc.ServerStream) error {
			md, _ := metadata.FromIncomingContext(s.Context())
			s.SetTrailer(metadata.MD{"id": md["id"]})
			if err := s.SetHeader(metadata.MD{"id": md["id"]}); err != nil {
				return err
			}
			for range 1 + rand.N(3) {
				if err := s.SendMsg(answer(md["id"][0] + "@" + r.addr)); err != nil {
					return err
				}
			}
			return nil
		}
		r.stream = func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			return serve(s)
		}
		r.duplex = func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			return serve(s)
		}
		rs[i] = start(t, r)
	}
	m := newMeter(t)
	cc := dial(t, target(rs...), client.WithConfig(config(`{"kv_aware":{}}`)), m.option)
	connected(t, cc, rs)
	stub := testpb.NewTestServiceClient(cc)
	parent := deadline(t)
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Go(func() {
			for i := range 100 {
				id, d := strconv.Itoa(w*1000+i), &client.Decision{}
				ctx := context.WithValue(client.WithDecision(parent, d), idKey{}, id)
				ctx = metadata.AppendToOutgoingContext(ctx, "id", id)
				e, messages := &ended{t: t, id: id}, 0
				var err error
				if i%2 == 0 {
					e.ClientStream, err = stub.StreamingOutputCall(ctx, prompt(id))
				} else {
					e.ClientStream, err = stub.FullDuplexCall(ctx)
					messages = rand.N(3)
				}
				if !assert.NoError(t, err) {
					return
				}
				var methods sync.WaitGroup
				methods.Go(func() { e.receive(d) })
				methods.Go(func() { e.send(messages) })
				methods.Go(func() {
					for more := rand.N(20); more > 0; more-- {
						e.look()
					}
				})
				methods.Wait()
			}
		})
	}
	workers.Wait()
	require.Zero(t, m.ongoing(t))
}
