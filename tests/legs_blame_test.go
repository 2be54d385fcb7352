package tests

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/telemetry"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
)

// oneStrike ejects a replica after one bad call.
const oneStrike = `"ejection":{"failures":1,"max_share":1}`

// condition reports whether a replica is in a condition.
func (m *meter) condition(t testing.TB, id, condition string) bool {
	is := telemetry.KeyCondition.String(condition)
	return m.sum(t, "warmpath.replica.condition", telemetry.KeyReplica.String(id), is) == 1
}

// A decode leg fails since the prefill replica has died meanwhile: that is no evidence against the decode replica, and
// the retry goes there again, also where the prefill replica is back. Where it lives it is, and the retry avoids both.
func TestLegsTransferFails(t *testing.T) {
	for name, dies := range map[string]bool{
		"the prefill replica is dead": true, "the prefill replica is back": true, "the prefill replica lives": false,
	} {
		t.Run(name, func(t *testing.T) {
			f := startLegFleet(t, 2, 2, oneStrike)
			ctx, entered, once := deadline(t), make(chan struct{}), new(sync.Once)
			f.by["d1"].instead(func(leg context.Context, q *vllmpb.GenerateRequest) (*vllmpb.GenerateResponse, error) {
				if q.RequestId == "busy" {
					close(entered)
					<-leg.Done()
				}
				return f.by["d1"].usual(q), nil
			})
			f.by["d0"].instead(func(_ context.Context, q *vllmpb.GenerateRequest) (*vllmpb.GenerateResponse, error) {
				p, failed := q.GetKv().GetKvTransferParams().GetFields()["remote_engine_id"].GetStringValue(), false
				once.Do(func() {
					failed = true
					if !dies {
						return
					}
					f.by[p].stop()
					pinned := func(id string) { // until that is where a pinned call goes
						for d := (client.Decision{Replica: "unknown"}); d.Replica != id && ctx.Err() == nil; {
							_, _ = vllmpb.NewInferenceClient(f.cc).Generate(client.WithPin(client.WithDecision(ctx, &d), p), q)
						}
					}
					if pinned(""); strings.HasSuffix(name, "back") {
						f.by[p].serve(t, listenAt(t, f.by[p].addr))
						pinned(p)
					}
				})
				if failed {
					return nil, status.Error(codes.Internal, "no KV")
				}
				return f.by["d0"].usual(q), nil
			})
			busy := request() // so that d0 is the one of less load
			busy.RequestId = "busy"
			var all sync.WaitGroup
			held, release := context.WithCancel(ctx)
			all.Go(func() { _, _ = vllmpb.NewInferenceClient(f.cc).Generate(client.WithPin(held, "d1"), busy) })
			<-entered
			_, d, err := f.call(t, ctx, request())
			require.NoError(t, err)
			require.Equal(t, 2, d.Attempts)
			require.NotEmpty(t, d.Prefill)
			again := "d0"
			if !dies {
				again = "d1"
			}
			require.Equal(t, again, d.Replica)
			require.Equal(t, dies, f.m.condition(t, "d0", "healthy"))
			release()
			all.Wait()
			f.idle(t)
		})
	}
}

// judged lets the error of a prefill leg, INTERNAL, pass before that of the decode leg, UNAVAILABLE, which came first.
type judged struct {
	grpc.ClientStream
	decoded, prefilled chan struct{} // closed when the errors have come
}

func (j judged) RecvMsg(m any) error {
	err := j.ClientStream.RecvMsg(m)
	switch status.Code(err) {
	case codes.Internal:
		close(j.prefilled)
	case codes.Unavailable:
		close(j.decoded)
		<-j.prefilled
	}
	return err
}

// A prefill leg fails since the decode replica has died: that is no evidence against the prefill replica. Where the
// decode replica lives it is.
func TestLegsDecodeReplicaDies(t *testing.T) {
	for name, dies := range map[string]bool{"the decode replica is dead": true, "the decode replica lives": false} {
		t.Run(name, func(t *testing.T) {
			var order atomic.Pointer[judged]
			f := startRoomFleet(t, client.WithConfig(config(`{"kv_aware":{}}`, oneStrike)), opening(
				func(ctx context.Context, open func(context.Context) (grpc.ClientStream, error)) (grpc.ClientStream, error) {
					s, err := open(ctx)
					if j := order.Load(); j != nil && err == nil {
						s = judged{s, j.decoded, j.prefilled}
					}
					return s, err
				}))
			j := &judged{decoded: make(chan struct{}), prefilled: make(chan struct{})}
			order.Store(j)
			result := f.call(deadline(t), nil)
			p, d := f.legs(t)
			if dies {
				d.answers(status.Error(codes.Unavailable, "down"))
				<-j.decoded
			}
			p.answers(status.Error(codes.Internal, "no KV"))
			p, d = f.legs(t)
			p.answers(nil)
			d.answers(nil)
			require.NoError(t, <-result)
			require.Equal(t, dies, f.m.condition(t, "p", "healthy"))
			require.Equal(t, !dies, f.m.condition(t, "d", "healthy"))
			f.idle(t)
		})
	}
}
