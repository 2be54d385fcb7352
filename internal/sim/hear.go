package sim

import (
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/internal/enginesim"
)

// hearing is what a policy is told of the engines' caches.
type hearing uint8

const (
	hearsNothing hearing = iota
	hearsCoarse          // superblocks, from the look-aside server
	hearsAll             // every block, from the engines themselves
)

// subscribers are the policies that subscribe to the engines' own events where no server does it for them. Other
// policies make do with what a server sends: that they need no events is what they are chosen for.
var subscribers = map[string]bool{"kv_aware": true}

// Subscribes reports whether a policy needs the engines' KV events, or a server that tells of them.
func Subscribes(policy string) bool { return subscribers[policy] }

// hearing is that of the config's policy, which observes caches or not.
func (c *Config) hearing(observes bool) hearing {
	switch {
	case !observes:
		return hearsNothing
	case c.Share == ShareBroadcast:
		return hearsCoarse
	case subscribers[c.name()]:
		return hearsAll
	}
	return hearsNothing
}

// exact is what the engines have told of their caches, every block as soon as its pass was over.
//
// A client looks up nothing but the prompt that it routes, so it is told of the blocks of that prompt just before,
// as they are: it finds what it would find had it followed every event, at a hundredth of the cost for 64 clients.
type exact struct {
	caches  []*cache
	size    int // tokens in a block
	changes []routing.CacheChange
}

// cache is the blocks of one engine.
type cache struct {
	machine *machine
	blocks  map[uint64]struct{}
}

// listener is the subscription to a machine that is new or starts anew.
func (x *exact) listener(m *machine) enginesim.Listener {
	x.forget(m)
	c := &cache{machine: m, blocks: make(map[uint64]struct{})}
	x.caches = append(x.caches, c)
	return c
}

// forget drops a machine that has left.
func (x *exact) forget(m *machine) {
	x.caches = slices.DeleteFunc(x.caches, func(c *cache) bool { return c.machine == m })
}

// KVEvents implements [enginesim.Listener].
func (c *cache) KVEvents(_ time.Duration, events []enginesim.KVEvent) {
	for _, e := range events {
		for _, h := range e.Hashes {
			if e.Stored {
				c.blocks[h] = struct{}{}
			} else {
				delete(c.blocks, h)
			}
		}
	}
}

// tell brings what a client knows of the blocks of a prompt up to date: on every engine those up to the first that is
// not there, which ends what counts.
func (x *exact) tell(router *routing.Router, prompt []uint64) {
	x.changes = x.changes[:0]
	for _, c := range x.caches {
		n := 0
		for n < len(prompt) {
			if _, ok := c.blocks[prompt[n]]; !ok {
				break
			}
			n++
		}
		change := routing.CacheChange{Replica: c.machine.id, BlockTokens: x.size, Stored: prompt[:n]}
		if n < len(prompt) {
			change.Removed = prompt[n : n+1]
		}
		x.changes = append(x.changes, change)
	}
	if len(prompt) > 0 {
		router.CacheChanged(x.changes)
	}
}
