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

// maxSuspects bounds the prompts that are remembered, about 200 bytes each.
const maxSuspects = 1024

// Breaks within together of each other have one cause, if the later attempt was under way at the earlier break.
// maxBreaks bounds how many are remembered.
const (
	together  = time.Second
	maxBreaks = 256
)

// A quarantine remembers the prompts under which connections broke. A prompt that did so alone on two different
// replicas within the TTL is not sent any more, until the older strike is forgotten; a prompt that a replica answers
// is forgotten. A break of several connections at about the same time, or under several prompts, is a network's or a
// process's, and no evidence against any of them. While no prompt is suspected it costs a call two atomic loads.
type quarantine struct {
	held   atomic.Int64  // suspects
	breaks atomic.Uint64 // connections that ever broke under an attempt

	// mu guards the fields below; nothing is called under it.
	mu       sync.Mutex
	suspects map[uint64][]strike // by prompt; of different replicas, the oldest first, one or two
	recent   []breakage
}

type strike struct {
	replica string
	at      time.Time
	number  uint64 // of the break
}

// A breakage is one attempt whose connection broke.
type breakage struct {
	prompt  uint64
	known   bool // the prompt is: the attempt was not answered yet, and its message has one
	replica string
	at      time.Time
	number  uint64
	began   uint64 // breaks before the attempt began
	beside  bool   // other calls are still under way on the replica
}

// together reports whether two breaks have one cause that is no prompt: b is the later one.
func (a *breakage) together(b *breakage) bool {
	same := a.known && b.known && a.prompt == b.prompt && a.replica == b.replica
	return !same && b.began < a.number && b.at.Sub(a.at) < together
}

// broke notes a break. It returns the two replicas if the prompt is in quarantine by that.
func (q *quarantine) broke(b breakage, ttl time.Duration) []strike {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.expire(b.at, ttl)
	b.number = q.breaks.Add(1)
	shared := b.beside
	q.recent = slices.DeleteFunc(q.recent, func(a breakage) bool { return b.at.Sub(a.at) >= together })
	for i := range q.recent {
		if a := &q.recent[i]; a.together(&b) {
			shared = true
			q.withdraw(a)
		}
	}
	if len(q.recent) == maxBreaks {
		q.recent = slices.Delete(q.recent, 0, 1)
	}
	q.recent = append(q.recent, b)
	if shared || !b.known {
		return nil
	}
	return q.strike(b, ttl)
}

// withdraw takes back the strike of a break that turns out to have had another cause. Called with mu held.
func (q *quarantine) withdraw(b *breakage) {
	if b.known {
		q.set(b.prompt, slices.DeleteFunc(q.suspects[b.prompt], func(s strike) bool { return s.number == b.number }))
	}
}

// strike enters a break that is evidence against its prompt. Called with mu held.
func (q *quarantine) strike(b breakage, ttl time.Duration) []strike {
	strikes := slices.DeleteFunc(q.suspects[b.prompt], func(s strike) bool {
		return s.replica == b.replica || b.at.Sub(s.at) >= ttl
	})
	strikes = append(strikes, strike{b.replica, b.at, b.number})
	q.set(b.prompt, strikes[max(len(strikes)-2, 0):])
	for len(q.suspects) > maxSuspects {
		oldest := b.prompt
		for prompt, strikes := range q.suspects {
			if last(strikes).number < last(q.suspects[oldest]).number {
				oldest = prompt
			}
		}
		q.set(oldest, nil)
	}
	return q.convicted(b.prompt, b.at, ttl)
}

// last is the latest of a prompt's strikes.
func last(strikes []strike) strike { return strikes[len(strikes)-1] }

// set remembers the strikes of a prompt, or forgets it where there are none. Called with mu held.
func (q *quarantine) set(prompt uint64, strikes []strike) {
	if q.suspects == nil {
		q.suspects = make(map[uint64][]strike)
	}
	if q.suspects[prompt] = strikes; len(strikes) == 0 {
		delete(q.suspects, prompt)
	}
	q.held.Store(int64(len(q.suspects)))
}

// refuses returns the two replicas if the prompt is in quarantine.
func (q *quarantine) refuses(prompt uint64, now time.Time, ttl time.Duration) []strike {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.expire(now, ttl)
	return q.convicted(prompt, now, ttl)
}

// clear forgets a prompt: a replica has answered it.
func (q *quarantine) clear(prompt uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.set(prompt, nil)
}

// convicted is refuses. Called with mu held.
func (q *quarantine) convicted(prompt uint64, now time.Time, ttl time.Duration) []strike {
	strikes := q.suspects[prompt]
	if len(strikes) < 2 || now.Sub(strikes[0].at) >= ttl {
		return nil
	}
	return slices.Clone(strikes)
}

// expire forgets the prompts whose last strike is older than the TTL. Called with mu held.
func (q *quarantine) expire(now time.Time, ttl time.Duration) {
	for prompt, strikes := range q.suspects {
		if now.Sub(last(strikes).at) >= ttl {
			q.set(prompt, nil)
		}
	}
}

// quarantineTTL is how long a prompt stays in quarantine; not positive = there is none.
func (b *Binding) quarantineTTL() time.Duration { return time.Duration(b.Config.QuarantineTTL) }

// quarantined returns the error of a call whose prompt is in quarantine by these two strikes, nil for none.
func (b *Binding) quarantined(ctx context.Context, by []strike) error {
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
