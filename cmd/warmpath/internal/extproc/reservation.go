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

// A reservation is a request's, with what is learned of its outcome. The goroutine of its exchange uses
// it.
type reservation struct {
	host endpoint.Host
	ctx  context.Context // of the stream

	chosen *warmpathv1.ChooseReplicaResponse // nil = there is no reservation, or it is released
	asked  *warmpathv1.ChooseReplicaRequest  // without its prompt
	picked time.Time
	renew  *time.Timer // of the lease
	sent   bool        // the gateway has been answered
	moved  bool        // to a fallback

	code  codes.Code    // of the response
	first time.Duration // from the pick to the first byte of a good response's body; 0 = there is none
}

// reserve reserves a replica. Its error is a status.
func (b *reservation) reserve(ctx context.Context, q *warmpathv1.ChooseReplicaRequest) (err error) {
	q.Mode, q.Attempt = warmpathv1.PickMode_PICK_MODE_RESERVE, rand.Uint64()
	b.picked = time.Now()
	if b.chosen, err = b.host.ChooseReplica(ctx, q); err != nil {
		return err
	}
	q.Key.Prompt = nil
	b.asked = q
	r := b.chosen.GetReservation()
	every := time.Duration(r.GetLeaseMs()) * time.Millisecond / 3
	progress := &warmpathv1.LifeReport{Reservation: r.GetId(), Stage: warmpathv1.LifeStage_LIFE_STAGE_PROGRESS}
	var t *time.Timer
	t = time.AfterFunc(time.Hour, func() {
		if b.live(progress) { // else it is released
			t.Reset(every)
		}
	})
	t.Reset(every)
	b.renew = t
	return nil
}

// live reports a stage of a reservation. It returns false if there is no such reservation.
func (b *reservation) live(r *warmpathv1.LifeReport) bool {
	a, err := b.host.ReportLife(b.ctx, &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{r}})
	return err == nil && len(a.GetUnknown()) == 0
}

// servedAt moves the reservation to the replica that has served, if that is a fallback: the pick has failed then.
func (b *reservation) servedAt(address string) {
	if b.chosen == nil || address == "" || address == b.chosen.GetReplica().GetAddress() {
		return
	}
	failed, q := b.chosen, b.asked
	b.code = codes.Unavailable
	b.release(nil)
	for _, r := range failed.GetFallbacks() {
		if r.GetAddress() == address {
			q.Pinned, q.Tried, q.Allowed = r.GetId(), []string{failed.GetReplica().GetId()}, nil
			q.Key.PromptTokens = failed.GetDecision().GetPromptTokens()
			b.moved = b.reserve(b.ctx, q) == nil // one that is full by now is not charged
		}
	}
}

// firstToken notes the first byte of a response's body. Of a response that failed it shows nothing, and with its last
// one the release is enough.
func (b *reservation) firstToken(last bool) {
	if b.chosen == nil || b.first > 0 || b.code != codes.OK {
		return
	}
	if b.first = max(time.Since(b.picked), time.Microsecond); last {
		return
	}
	b.live(&warmpathv1.LifeReport{
		Reservation: b.chosen.GetReservation().GetId(), Stage: warmpathv1.LifeStage_LIFE_STAGE_PREFILL_COMPLETE,
	})
}

// unseen leaves a reservation to the server: the gateway does not show the end of the response.
func (b *reservation) unseen() {
	b.renew.Stop()
	b.host.Unseen(b.chosen.GetReservation().GetId())
	b.chosen = nil
}

// broke releases a reservation whose response has not come to its end.
func (b *reservation) broke(u *policy.Usage) {
	b.code = codes.Canceled
	b.release(u)
}

// forget releases a reservation whose outcome is not known.
func (b *reservation) forget() {
	b.renew.Stop()
	b.live(&warmpathv1.LifeReport{
		Reservation: b.chosen.GetReservation().GetId(), Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED,
	})
	b.chosen = nil
}

// release releases the reservation, once, with its outcome.
func (b *reservation) release(u *policy.Usage) {
	if b.chosen == nil {
		return
	}
	b.renew.Stop()
	o := &warmpathv1.Outcome{Code: int32(b.code), Sent: b.sent}
	if !b.moved { // else its time is not that of one replica
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
