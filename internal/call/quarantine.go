package call

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/telemetry"
)

// Breaks within together of each other have one cause, if the later attempt was under way at the earlier break.
// maxBreaks bounds how many are remembered, about 80 bytes each.
const (
	together  = time.Second
	maxBreaks = 1024
)

// A quarantine remembers the attempts whose connections broke. A prompt under which that happened alone on two
// different replicas within the TTL is not sent any more, until the older break is forgotten; a prompt that a replica
// answers is forgotten. A break of several connections at about the same time, or under several prompts, is a
// network's or a process's, and no evidence against any of them. While no prompt is suspected it costs a call two
// atomic loads.
type quarantine struct {
	held   atomic.Int64  // breaks that are evidence
	breaks atomic.Uint64 // connections that ever broke under an attempt

	// mu guards the field below; nothing is called under it.
	mu     sync.Mutex
	recent []breakage // the oldest first
}

// A breakage is one attempt whose connection broke.
type breakage struct {
	prompt  uint64
	known   bool // the prompt is: the attempt was not answered yet, and its message has one
	replica string
	at      time.Time
	number  uint64
	began   uint64 // breaks before the attempt began
	beside  bool   // it has another cause than its prompt: other calls are under way on the replica, or break together
}

// evidence reports whether a break speaks against its prompt.
func (b *breakage) evidence() bool { return b.known && !b.beside }

// together reports whether two breaks have one cause that is no prompt: b is the later one.
func (a *breakage) together(b *breakage) bool {
	same := a.known && b.known && a.prompt == b.prompt && a.replica == b.replica
	return !same && b.began < a.number && b.at.Sub(a.at) < together
}

// broke notes a break. It returns the two breaks if the prompt is in quarantine by that.
func (q *quarantine) broke(b breakage, ttl time.Duration) []breakage {
	q.mu.Lock()
	defer q.mu.Unlock()
	b.number = q.breaks.Add(1)
	for i := range q.recent {
		if a := &q.recent[i]; a.together(&b) {
			a.beside, b.beside = true, true
		}
	}
	q.recent = append(q.recent[max(len(q.recent)+1-maxBreaks, 0):], b)
	q.expire(b.at, ttl)
	return q.convicted(b.prompt)
}

// refuses returns the two breaks if the prompt is in quarantine.
func (q *quarantine) refuses(prompt uint64, now time.Time, ttl time.Duration) []breakage {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.expire(now, ttl)
	return q.convicted(prompt)
}

// clear forgets a prompt: a replica has answered it.
func (q *quarantine) clear(prompt uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.forget(func(b breakage) bool { return b.evidence() && b.prompt == prompt })
}

// expire forgets the breaks that are older than the TTL. Called with mu held.
func (q *quarantine) expire(now time.Time, ttl time.Duration) {
	q.forget(func(b breakage) bool { return now.Sub(b.at) >= max(ttl, together) })
}

// forget forgets some breaks. Called with mu held.
func (q *quarantine) forget(which func(breakage) bool) {
	q.recent = slices.DeleteFunc(q.recent, which)
	held := 0
	for i := range q.recent {
		if q.recent[i].evidence() {
			held++
		}
	}
	q.held.Store(int64(held))
}

// convicted returns the last breaks under a prompt on two replicas, the older one first; nil if there are none.
// Called with mu held.
func (q *quarantine) convicted(prompt uint64) []breakage {
	var last *breakage
	for i := len(q.recent) - 1; i >= 0; i-- {
		switch b := &q.recent[i]; {
		case !b.evidence() || b.prompt != prompt:
		case last == nil:
			last = b
		case b.replica != last.replica:
			return []breakage{*b, *last}
		}
	}
	return nil
}

// quarantineTTL is how long a prompt stays in quarantine; not positive = there is none.
func (b *Binding) quarantineTTL() time.Duration { return time.Duration(b.Config.QuarantineTTL) }

// broke notes that a connection may have broken under an attempt that ended with err: with UNAVAILABLE. Where the
// attempt was answered its prompt does not count, and the break is evidence for others. It returns the two breaks if
// the prompt is in quarantine by that.
func (b *Binding) broke(q *quarantine, last *attempt, err error, prompt uint64, known bool) []breakage {
	if b.quarantineTTL() <= 0 || last.Replica == nil || status.Code(err) != codes.Unavailable {
		return nil
	}
	return q.broke(breakage{
		prompt: prompt, known: known, replica: last.Replica.ID, at: time.Now(), began: last.breaks,
		beside: known && last.Replica.Ongoing() > 0,
	}, b.quarantineTTL())
}

// quarantined returns the error of a call whose prompt is in quarantine by these two breaks, nil for none.
func (b *Binding) quarantined(ctx context.Context, by []breakage) error {
	if by == nil {
		return nil
	}
	b.Telemetry.Count(ctx, telemetry.Quarantined, b.Policy, "")
	end := by[0].at.Add(b.quarantineTTL()).UTC().Format(time.RFC3339)
	return &callError{
		status: status.New(codes.Internal, fmt.Sprintf("warmpath: the prompt is not sent to another replica: "+
			"the connections to %s and %s broke while they had it and before they answered, and no replica has "+
			"answered it since; it is sent again from %s on (quarantine_ttl)", by[0].replica, by[1].replica, end)),
		causes: []error{ErrQuarantined},
	}
}
