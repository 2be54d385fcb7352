package lookaside

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const (
	// maxReports bounds the reports that wait to be sent. Where one is not sent, the lease ends at the server.
	maxReports = 10_000
	// batchFor is how long reports wait for others, or for a request to be sent with.
	batchFor = 5 * time.Millisecond
)

// A Reservation is the load of one attempt of a call at a server. Safe for use by many goroutines.
//
// It counts at the server, so the reports of the own load leave it out. Where the server could not be reached until its
// lease ended, it is own load from then on.
type Reservation struct {
	central *Central
	id      string
	replica string
	lease   time.Duration
	prefill string // the replica that prefills, also where that is the same

	// Guarded by central.mu.
	tokens  int64     // of the prompt, not yet prefilled
	done    bool      // the prompt is prefilled
	renewed time.Time // when its lease last began
}

// reserve enters a reservation that the server has made. Called with mu held.
func (c *Central) reserve(
	r *warmpathv1.Reservation, replica, prefill string, tokens int64, now time.Time,
) *Reservation {
	x := &Reservation{
		central: c, id: r.GetId(), replica: replica, prefill: prefill, tokens: tokens, renewed: now,
		lease: time.Duration(r.GetLeaseMs()) * time.Millisecond,
	}
	c.live[x] = struct{}{}
	return x
}

// reserved is what the server has reserved for this client, by id of the replica.
func (c *Central) reserved() map[string]load {
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := make(map[string]load)
	for x := range c.live {
		l := sum[x.replica]
		sum[x.replica] = load{l.ongoing + 1, l.tokens}
		if x.done {
			continue
		}
		if l = sum[x.prefill]; x.prefill != x.replica {
			l.ongoing++
		}
		sum[x.prefill] = load{l.ongoing, l.tokens + x.tokens}
	}
	return sum
}

// lives reports whether the reservation is in force. Called with central.mu held.
func (x *Reservation) lives() bool {
	_, ok := x.central.live[x]
	return ok
}

// Prefilled drops the prompt's share of the load, and all of the prefill leg's: the first response message has come, or
// that leg has ended.
func (x *Reservation) Prefilled() {
	x.central.mu.Lock()
	defer x.central.mu.Unlock()
	if x.lives() && !x.done && (x.tokens > 0 || x.prefill != x.replica) {
		x.done = true
		x.central.report(&lifeReport{Reservation: x.id, Stage: warmpathv1.LifeStage_LIFE_STAGE_PREFILL_COMPLETE})
	}
}

// Released ends the reservation, once, with the attempt's outcome, nil if it was never sent.
func (x *Reservation) Released(o *policy.Outcome) {
	x.central.mu.Lock()
	defer x.central.mu.Unlock()
	if !x.lives() {
		return
	}
	delete(x.central.live, x)
	x.central.release(x.id, o)
}

// giveBack releases a reservation that is of no use. Called with mu held.
func (c *Central) giveBack(r *warmpathv1.Reservation) {
	if r.GetId() != "" {
		c.release(r.GetId(), nil)
	}
}

// release has the server release a reservation, and reports how its attempt ended. Called with mu held.
func (c *Central) release(id string, o *policy.Outcome) {
	c.report(&lifeReport{Reservation: id, Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED, Outcome: outcomeOf(o)})
}

// Forget has the server free what it keeps of a session that has ended, given as state.SessionHash.
func (c *Central) Forget(session uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report(&lifeReport{EndedSession: session})
}

type lifeReport = warmpathv1.LifeReport

// report has the server sent what became of a reservation or a session. Called with mu held.
func (c *Central) report(r *lifeReport) {
	if len(c.reports) >= maxReports {
		return
	}
	c.reports = append(c.reports, r)
	if len(c.reports) == 1 {
		time.AfterFunc(batchFor, c.notify)
	}
}

// renew has reservations reported before their leases end. Called with mu held.
func (c *Central) renew(now time.Time) {
	for x := range c.live {
		switch silent := now.Sub(x.renewed); {
		case silent >= x.lease:
			delete(c.live, x)
		case silent >= x.lease/3:
			x.renewed = now
			c.report(&lifeReport{Reservation: x.id, Stage: warmpathv1.LifeStage_LIFE_STAGE_PROGRESS})
		}
	}
}

// outcomeOf is how an attempt ended, as a message; nil = it was never sent.
func outcomeOf(o *policy.Outcome) *warmpathv1.Outcome {
	if o == nil {
		return new(warmpathv1.Outcome)
	}
	count := func(n int) *uint32 {
		if n < 0 {
			return nil
		}
		return new(uint32(min(n, 1<<31)))
	}
	code := status.Code(o.Err)
	if o.Err != nil && o.Fault == policy.GivenUp {
		code = codes.Canceled // whatever the status is, it is no fault of the replica
	}
	return &warmpathv1.Outcome{
		Code: int32(code), Sent: o.Sent, FirstMessageUs: uint64(max(o.FirstMessage.Microseconds(), 0)),
		PromptTokens: count(o.Usage.PromptTokens), CachedTokens: count(o.Usage.CachedTokens),
		OutputTokens: count(o.Usage.OutputTokens),
	}
}
