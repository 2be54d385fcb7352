package sim

import (
	"slices"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
)

// subscribers are the policies that subscribe to the engines' own events where no server does it for them. Other
// policies get what a server sends: they are chosen where there are no events.
var subscribers = map[string]bool{"kv_aware": true}

// Subscribes reports whether a policy needs the engines' KV events, or a server that sends them.
func Subscribes(policyName string) bool { return subscribers[policyName] }

// exact is what the engines have reported of their caches, every block as soon as its pass was over.
//
// A client looks up nothing but the prompt that it routes, so it gets the blocks of that prompt just before,
// as they are: the result is that of following every event, at a hundredth of the cost for 64 clients.
type exact struct {
	machines []*machine
	size     int // tokens in a block
	changes  []policy.CacheChange
}

// subscribe adds a machine that is new or starts anew.
func (x *exact) subscribe(m *machine) {
	x.forget(m)
	x.machines = append(x.machines, m)
}

// forget drops a machine that has left.
func (x *exact) forget(m *machine) {
	x.machines = slices.DeleteFunc(x.machines, func(o *machine) bool { return o == m })
}

// update brings a client's view of the blocks of a prompt up to date: on every engine those up to the first that is
// not there, since those behind it do not count.
func (x *exact) update(rt *router.Router, prompt []uint64) {
	x.changes = x.changes[:0]
	for _, m := range x.machines {
		n := m.engine.Published(prompt)
		change := policy.CacheChange{Replica: m.id, BlockTokens: x.size, Stored: prompt[:n]}
		if n < len(prompt) {
			change.Removed = prompt[n : n+1]
		}
		x.changes = append(x.changes, change)
	}
	if len(prompt) > 0 {
		rt.CacheChanged(x.changes)
	}
}
