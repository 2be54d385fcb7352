package sim

import (
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/lab/enginesim"
	"github.com/warmpath/warmpath/internal/router"
)

// subscribers are the policies that subscribe to the engines' own events where no server does it for them. Other
// policies get what a server sends: they are chosen where there are no events.
var subscribers = map[string]bool{"kv_aware": true}

// Subscribes reports whether a policy needs the engines' KV events, or a server that sends them.
func Subscribes(policyName string) bool { return subscribers[policyName] }

// subscribe brings a client's view of the blocks of a prompt up to date: on every engine those up to the first that is
// not there, since those behind it do not count.
//
// A client looks up nothing but the prompt that it routes, so it gets the blocks of that prompt just before,
// as they are: the result is that of following every event, at a hundredth of the cost for 64 clients.
func (r *run) subscribe(rt *router.Router, prompt []uint64) {
	if len(prompt) == 0 {
		return
	}
	r.changes = r.changes[:0]
	for _, m := range r.machines {
		n := m.engine.Published(prompt)
		change := policy.CacheChange{Replica: m.id, BlockTokens: r.block, Stored: prompt[:n]}
		if n < len(prompt) {
			change.Removed = prompt[n : n+1]
		}
		r.changes = append(r.changes, change)
	}
	rt.CacheChanged(r.changes)
}

// contents are the superblocks of one engine in the look-aside server's index, which subscribes to its events:
// the chained hashes at every multiple of policy.SuperblockTokens. A superblock is there as long as the block that
// ends it is.
type contents struct {
	replica string
	every   int // blocks in a superblock
	held    map[uint64]bool
	changes []policy.CacheChange // since the last broadcast
}

func newContents(replica string, blockSize int) *contents {
	return &contents{replica: replica, every: policy.SuperblockTokens / blockSize, held: make(map[uint64]bool)}
}

// KVEvents implements [enginesim.Listener].
func (c *contents) KVEvents(_ time.Duration, events []enginesim.KVEvent) {
	for _, e := range events {
		change := policy.CacheChange{Replica: c.replica, BlockTokens: policy.SuperblockTokens}
		if e.Stored {
			for i := c.every - 1 - e.First%c.every; i < len(e.Hashes); i += c.every {
				c.held[e.Hashes[i]] = true
				change.Stored = append(change.Stored, e.Hashes[i])
			}
		} else {
			for _, h := range e.Hashes {
				if c.held[h] {
					delete(c.held, h)
					change.Removed = append(change.Removed, h)
				}
			}
		}
		if len(change.Stored)+len(change.Removed) > 0 {
			c.changes = append(c.changes, change)
		}
	}
}
