package lookaside

import (
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// maxPending bounds the reports that wait to be sent. What is not sent, the server learns by the end of a lease.
const maxPending = 10_000

// reserved is what the server that is followed has reserved for this client: it counts there, so the reports of the own
// load leave it out. It outlives the streams to that server.
type reserved struct {
	wake chan struct{} // holds one: there is something to send

	mu      sync.Mutex // guards the fields below and the Reservations; nothing is locked under it
	live    map[*Reservation]struct{}
	loads   map[string]load // by id of the replica
	lives   uint64          // how often it was forgotten
	pending []news
}

// news is a report that waits to be sent.
type news struct {
	of   *Reservation
	what *warmpathv1.LifeReport
}

func newReserved() *reserved {
	return &reserved{wake: make(chan struct{}, 1), live: make(map[*Reservation]struct{}), loads: make(map[string]load)}
}

// A Reservation is the load of one attempt of a call at a server. Safe for use by many goroutines; nil is one that was
// never made.
type Reservation struct {
	of      *reserved
	id      string
	replica string
	lease   time.Duration

	// Guarded by of.mu.
	tokens int64     // of the prompt, not yet prefilled
	sent   time.Time // when the server was last sent news of it
	dirty  bool      // there is news to be sent
	over   bool
}

func (l *reserved) add(r *warmpathv1.Reservation, replica string, tokens int64, now time.Time) *Reservation {
	x := &Reservation{
		of: l, id: r.GetId(), replica: replica, tokens: tokens, sent: now,
		lease: time.Duration(r.GetLeaseMs()) * time.Millisecond,
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live[x] = struct{}{}
	l.charge(x, 1, tokens)
	return x
}

// charge adds to a replica's load. Called with mu held.
func (l *reserved) charge(x *Reservation, ongoing, tokens int64) {
	b := l.loads[x.replica]
	b.ongoing += ongoing
	b.tokens += tokens
	if b == (load{}) {
		delete(l.loads, x.replica)
		return
	}
	l.loads[x.replica] = b
}

// on is what is reserved on a replica.
func (l *reserved) on(replica string) load {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.loads[replica]
}

// Prefilled drops the prompt's share of the load: the first response message has come.
func (x *Reservation) Prefilled() {
	if x == nil {
		return
	}
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	if x.over || x.tokens == 0 {
		return
	}
	x.of.charge(x, 0, -x.tokens)
	x.tokens = 0
	x.of.send(x, &warmpathv1.LifeReport{Reservation: x.id, Stage: warmpathv1.LifeStage_LIFE_STAGE_PREFILL_COMPLETE})
}

// Released ends the reservation, once, with the attempt's outcome, nil if it was never sent.
func (x *Reservation) Released(o *policy.Outcome) {
	if x == nil {
		return
	}
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	if x.over {
		return
	}
	x.of.end(x)
	r := &warmpathv1.LifeReport{Reservation: x.id, Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED}
	if r.Outcome = new(warmpathv1.Outcome); o != nil {
		r.Outcome = outcomeOf(o)
	}
	x.of.send(x, r)
}

// end takes a reservation out. Called with mu held.
func (l *reserved) end(x *Reservation) {
	x.over = true
	l.charge(x, -1, -x.tokens)
	delete(l.live, x)
}

// send has a report sent. Called with mu held.
func (l *reserved) send(x *Reservation, r *warmpathv1.LifeReport) {
	if len(l.pending) >= maxPending {
		return
	}
	x.dirty = true
	l.pending = append(l.pending, news{x, r})
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// ours reports whether a reservation was made for the question that it answers. An older server, to which all attempts
// at a request are one, answers with the reservation of another attempt: that one renews and releases it, and this
// attempt's load counts as the client's own.
func ours(r *warmpathv1.Reservation) bool { return r.GetId() != "" && !r.GetRepeated() }

// drop gives back a reservation that came too late to be of use.
func (l *reserved) drop(r *warmpathv1.Reservation) {
	if ours(r) {
		l.add(r, "", 0, time.Now()).Released(nil)
	}
}

// take returns the reports to send now.
func (l *reserved) take() []*warmpathv1.LifeReport {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	all := make([]*warmpathv1.LifeReport, 0, len(l.pending))
	for _, n := range l.pending {
		n.of.sent, n.of.dirty = now, false
		if n.of.over && n.what.GetStage() == warmpathv1.LifeStage_LIFE_STAGE_PROGRESS {
			continue
		}
		all = append(all, n.what)
	}
	l.pending = nil
	return all
}

// renew has news of reservations sent before their leases end. Those whose leases have ended, since the server could
// not be reached, are the client's own load from now on.
func (l *reserved) renew(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for x := range l.live {
		switch silent := now.Sub(x.sent); {
		case silent >= x.lease:
			l.end(x)
		case silent >= x.lease/3 && !x.dirty:
			l.send(x, &warmpathv1.LifeReport{Reservation: x.id, Stage: warmpathv1.LifeStage_LIFE_STAGE_PROGRESS})
		}
	}
}

// lived numbers the servers that reservations were made by, and their restarts.
func (l *reserved) lived() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lives
}

// forget is for another server, or another life of it: nothing is reserved there.
func (l *reserved) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for x := range l.live {
		l.end(x)
	}
	l.pending = nil
	l.lives++
}

// outcomeOf is how an attempt ended, as a message.
func outcomeOf(o *policy.Outcome) *warmpathv1.Outcome {
	out := &warmpathv1.Outcome{
		Code: int32(status.Code(o.Err)), Sent: o.Sent, FirstMessageUs: uint64(max(o.FirstMessage.Microseconds(), 0)),
	}
	for _, f := range []struct {
		from int
		into **uint32
	}{
		{o.Usage.PromptTokens, &out.PromptTokens},
		{o.Usage.CachedTokens, &out.CachedTokens},
		{o.Usage.OutputTokens, &out.OutputTokens},
	} {
		if f.from >= 0 {
			n := uint32(min(f.from, 1<<31))
			*f.into = &n
		}
	}
	return out
}
