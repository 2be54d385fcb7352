package extproc

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/endpoint"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A booking is the reservation of one request, with what is learned of its outcome. The goroutine of its exchange uses
// it; only the lease is renewed by another one.
type booking struct {
	host endpoint.Host
	ctx  context.Context // of the stream

	chosen *warmpathv1.ChooseReplicaResponse // nil = there is no reservation, or it is released
	asked  *warmpathv1.ChooseReplicaRequest  // without its prompt
	picked time.Time
	sent   bool // the gateway has been answered
	moved  bool // to a fallback
	lease  *lease

	code  codes.Code    // of the response
	heard bool          // the response has begun
	first time.Duration // from the pick to the first byte of a good response's body; 0 = there is none
}

// reserve reserves a replica. Its error is a status.
func (b *booking) reserve(ctx context.Context, q *warmpathv1.ChooseReplicaRequest) error {
	q.Mode, q.Attempt = warmpathv1.PickMode_PICK_MODE_RESERVE, rand.Uint64()
	b.picked = time.Now()
	a, err := b.host.ChooseReplica(ctx, q)
	if err != nil {
		return err
	}
	q.Key.Prompt = nil
	b.chosen, b.asked = a, q
	b.lease = newLease(a.GetReservation(), b.live)
	return nil
}

// live reports a stage of the reservation.
func (b *booking) live(r *warmpathv1.LifeReport) {
	_, _ = b.host.ReportLife(b.ctx, &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{r}})
}

// servedAt moves the reservation to the replica that has served, if that is a fallback: the pick has failed then.
func (b *booking) servedAt(address string) {
	if b.chosen == nil || address == "" || address == b.chosen.GetReplica().GetAddress() {
		return
	}
	failed, fallbacks, began := b.chosen.GetReplica().GetId(), b.chosen.GetFallbacks(), b.picked
	q := b.asked
	b.code, b.heard = codes.Unavailable, true
	b.release(nil)
	for _, r := range fallbacks {
		if r.GetAddress() != address {
			continue
		}
		q.Pinned, q.Tried, q.Allowed = r.GetId(), []string{failed}, nil
		_ = b.reserve(b.ctx, q) // one that is full by now has no reservation of this request
		b.picked, b.moved = began, true
	}
}

// began notes the status of the response.
func (b *booking) began(code codes.Code) { b.code, b.heard = code, true }

// firstToken notes the first byte of a response's body. Of a response that failed it shows nothing.
func (b *booking) firstToken() {
	if b.chosen == nil || b.first > 0 || b.code != codes.OK {
		return
	}
	b.first = max(time.Since(b.picked), time.Microsecond)
	b.live(&warmpathv1.LifeReport{
		Reservation: b.chosen.GetReservation().GetId(), Stage: warmpathv1.LifeStage_LIFE_STAGE_PREFILL_COMPLETE,
	})
}

// broke releases a reservation whose response has not come to its end.
func (b *booking) broke(u *policy.Usage) {
	b.code = codes.Canceled
	b.heard = b.heard || b.sent
	b.release(u)
}

// release releases the reservation, once, with its outcome.
func (b *booking) release(u *policy.Usage) {
	if b.chosen == nil {
		return
	}
	b.lease.stop()
	o := &warmpathv1.Outcome{Code: int32(b.code), Sent: b.heard}
	if !b.moved {
		o.FirstMessageUs = uint64(b.first.Microseconds())
	}
	if u != nil {
		o.PromptTokens, o.CachedTokens, o.OutputTokens = count(u.PromptTokens), count(u.CachedTokens), count(u.OutputTokens)
	}
	b.live(&warmpathv1.LifeReport{
		Reservation: b.chosen.GetReservation().GetId(), Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED, Outcome: o,
	})
	b.chosen = nil
}

// count is a number of tokens, nil where there is none.
func count(n int) *uint32 {
	if n < 0 {
		return nil
	}
	return proto.Uint32(uint32(n))
}
