package prefixaffinity

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/routing"
)

// reuse is how much of a prompt's own tokens the first of its agreed order turns out
// to have cached although nobody here sent them there: other clients did. It is
// learned from what engines report, and weighs how long such a prompt should wait for
// its agreed replica.
//
// mu guards length, and that share is written by one at a time. No other lock is taken under it.
type reuse struct {
	bits   atomic.Uint64 // of the share, less unknownReuse, so that zero is ready
	mu     sync.Mutex
	length float64 // mean of the prompts' own tokens, 0 before the first
}

const (
	// unknownReuse is believed where engines report nothing.
	unknownReuse = 0.3
	// reuseStep is how far a prompt of the usual length moves what is believed; shorter
	// ones move it less, since less is saved by them, and longer ones more, up to twice.
	reuseStep = 0.05
	// littleReuse is the share below which agreeing gains nothing. One key in exploring
	// goes by the agreed order all the same, at every client the same ones, so that it
	// is noticed when that changes.
	littleReuse = 0.005
	exploring   = 8
)

// share returns it, in [0, 1].
func (u *reuse) share() float64 { return unknownReuse + math.Float64frombits(u.bits.Load()) }

// gainsNothing reports whether prompts that nobody here has sent anywhere have turned
// out to be cached nowhere, and this one is not among those that are to find out. Where
// others' load is told the order stays, whatever it gains: clients that take turns
// would all pass over the same replicas, and meet at the next.
func (c *choice) gainsNothing() bool {
	return len(c.Hashes) > 0 && c.key%exploring != 0 && c.v.MeanForeignLoad() == 0 && c.p.reuse.share() < littleReuse && !c.session
}

// telling is how many calls a client must have under way at the mean replica for its own
// view of the load to tell replicas apart. With fewer, chance does.
const telling = 5

// fewer is by how many calls fewer one of two replicas must have under way to be taken
// instead of the next in turn also where there are less than that: it does not come from
// turns, but from calls that are slow to come back.
const fewer = 3

// turn returns the next replica in turn that is available and within the bound: nothing is
// more even for a client that sees few calls and no loads but its own. One that has many
// under way takes the less loaded of the next two: what has not come back tells of the
// others' load too, but tells all clients alike, and who took the least loaded of many
// would meet the others there.
func (c *choice) turn() *routing.Replica {
	replicas := c.Pool.Replicas
	n, looked, ongoing := len(replicas), 0, 0
	var first, second int // available, in turn
	for i := 0; i < n && looked < sample; i++ {
		at := (*c.turns + i) % n
		if !c.Pool.Takes(replicas[at]) {
			continue
		}
		if looked == 0 {
			first = at
		}
		if looked < 2 {
			second = at
		}
		looked++
		ongoing += replicas[at].Ongoing()
	}
	if looked == 0 {
		return nil
	}
	*c.turns = (first + 1) % n
	next, other := replicas[first], replicas[second]
	if ongoing >= telling*looked && c.v.Load(other) < c.v.Load(next) || other.Ongoing()+fewer <= next.Ongoing() {
		next = other
	}
	if c.within(next, 0) {
		return next
	}
	return c.leastLoaded()
}

// learn takes a prompt of so many tokens of its own, of which some were cached.
func (u *reuse) learn(cached, own int) {
	if own <= 0 {
		return
	}
	hit := min(max(float64(cached)/float64(own), 0), 1)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.length == 0 {
		u.length = float64(own)
	}
	u.length += reuseStep * (float64(own) - u.length)
	step := reuseStep * min(2, float64(own)/u.length)
	was := math.Float64frombits(u.bits.Load())
	u.bits.Store(math.Float64bits(was + step*(hit-unknownReuse-was)))
}
