package kvaware

import (
	"math"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A home is the replica, and the rank of it, that all clients send a prompt to unless another is cheaper. It is the
// first in the rendezvous order, or the second if the first has long been the busier one.
type home struct {
	exists   bool            // false = nothing is cached that this client does not know of
	replica  *policy.Replica // nil = it is not available now
	at       int32           // its place in the fleet
	left     int32           // the place of the first in the order if the second is the home, else -1
	expected int             // leading tokens of the prompt that other clients are expected to have sent there
}

// Of the first two in the rendezvous order the second is the home while the first has more calls under way, in the mean
// of the last minutes, by a factor between busier and busiest that the key fixes: clients whose means differ a little
// differ in few homes. docs/routing-quality.md, row "second home".
const (
	longBusy = 180.0 // seconds that the mean covers
	busier   = 1.25
	busiest  = 2.5
	idleCall = 1.0 // calls added to both means, so that a few calls more than none do not count
)

// findHome finds the home of the prompt. There is none if the replica's engine reports its blocks, and none while this
// client is alone: then it knows what it has sent, and nothing else is cached. Superblocks do not tell of the tokens
// behind the last full one, so that is the most that is expected beyond them.
func (c *choice) findHome() {
	c.home = home{at: c.order[0], left: -1}
	if c.Stale || len(c.Hashes) == 0 || c.home.at < 0 || c.alone || c.fleet.Members[c.home.at].Reported() {
		return
	}
	c.home.exists = true
	if c.crowded(c.order[0], c.order[1]) {
		c.home.at, c.home.left = c.order[1], c.order[0]
	}
	c.home.replica = c.Take(c.home.at)
	if share := c.reuse.Share(); share > 0 {
		shared := c.CoveredTokens(c.First)
		c.home.expected = shared + int(share*float64(c.Tokens-shared))
		if c.fleet.Members[c.home.at].Coarse() {
			c.home.expected = min(c.home.expected, c.held(c.home.at)+policy.SuperblockTokens)
		}
	}
}

// held returns how many leading tokens the replica at a place holds, on the rank that holds most.
func (c *choice) held(at int32) int {
	most := int32(0)
	for i := range c.candidates {
		if k := &c.candidates[i]; k.at == at {
			most = max(most, k.tokens)
		}
	}
	return int(most)
}

// is reports whether a candidate is the home. Of several ranks it is the one that the key fixes.
func (c *choice) is(k *candidate) bool {
	return k.at == c.home.at && (k.ranks <= 1 || k.rank == int32(c.Key%uint64(k.ranks)))
}

// weigh returns what a candidate's cache is worth for a prompt that has a home, and puts the replica that was left for
// the second behind all others in the order.
func (c *choice) weigh(k *candidate) float64 {
	if k.at == c.home.left {
		k.score = 0
	}
	switch {
	case c.is(k):
		return max(k.credit, float64(c.home.expected))
	case c.fleet.Members[k.at].Coarse(): // what is not evicted there is known
	case c.home.replica != nil && c.home.replica.HomeWeight() != 0 && k.credit < float64(c.home.expected+nearTie):
		return 0 // other clients send prompts of the key to the home, so it is evicted elsewhere
	}
	return k.credit
}

// crowded reports whether the first in the rendezvous order is too busy to be the home.
func (c *choice) crowded(first, second int32) bool {
	if second < 0 || c.fleet.Members[second].Reported() || c.balanced(c.fleet.Replicas[first]) {
		return false
	}
	ratio := (c.fleet.Members[first].Busy.Mean + idleCall) / (c.fleet.Members[second].Busy.Mean + idleCall)
	return ratio > busier && ratio > busier+(busiest-busier)*float64(c.Key>>11)/(1<<53)
}

// balanced reports whether the homes need no second: a server weighs them, or replicas are asked for their load, which
// tells of different moments.
func (c *choice) balanced(first *policy.Replica) bool {
	peers, _ := first.PeerLoad()
	return first.HomeWeight() != 0 || peers > 0 && c.View.PeerDrift() == 0
}

// watch notes how many calls are under way on the candidates, those of other clients too if a server adds them up.
func (c *choice) watch() {
	now, known := c.View.Now(), c.View.PeerDrift() > 0
	for i := range c.candidates {
		k := &c.candidates[i]
		if i > 0 && c.candidates[i-1].at == k.at { // another rank
			continue
		}
		r := c.fleet.Replicas[k.at]
		calls := float64(r.Ongoing())
		if peers, _ := r.PeerLoad(); known {
			calls += float64(peers)
		}
		busy := &c.fleet.Members[k.at].Busy
		if d := now.Sub(busy.At).Seconds(); !busy.At.IsZero() && d > 0 {
			busy.Mean += -math.Expm1(-d/longBusy) * (calls - busy.Mean)
		}
		busy.At = now
	}
}
