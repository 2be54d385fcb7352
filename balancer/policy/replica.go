package policy

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/warmpath/warmpath/internal/router/state"
)

// The roles of replicas, in a fleet that prefills and decodes on different ones.
const (
	RolePrefill = "prefill"
	RoleDecode  = "decode"
)

// Attributes describe a replica: an entry of the fleet file, of a resolver, or of a model server that registers. They
// do not change during the life of a [Replica].
type Attributes struct {
	// ID is the stable name of the replica, the one that hashes and spans use; unique in the fleet.
	// Printable ASCII without blanks, at most 256 bytes. Default: the address.
	ID string `json:"id,omitempty"`
	// Address is host:port; required.
	Address string `json:"address"`
	// ServerName is the name in the replica's certificate and in the :authority
	// of its calls, with or without a port. Default: the address.
	ServerName string `json:"server_name,omitempty"`
	// Zone and Node are where the replica runs.
	Zone string `json:"zone,omitempty"`
	Node string `json:"node,omitempty"`
	// Weight is the replica's share relative to others; 0 means 1. It is the
	// replica's rate until one is learned.
	Weight float64 `json:"weight,omitempty"`
	// MaxOngoing is how many requests may be under way at once; 0 means max_ongoing_requests of the [Config].
	MaxOngoing int      `json:"max_ongoing_requests,omitempty"`
	Models     []string `json:"models,omitempty"`   // served; empty = not declared
	Adapters   []string `json:"adapters,omitempty"` // LoRA adapters loaded
	// KVEvents is where the engine publishes its KV events, KVEventsReplay where it
	// repeats those that were missed; "" = nowhere.
	KVEvents       string `json:"kv_events,omitempty"`
	KVEventsReplay string `json:"kv_events_replay,omitempty"`
	// Ranks is how many data-parallel ranks the replica has; 0 and 1 mean one.
	Ranks    int  `json:"ranks,omitempty"`
	Draining bool `json:"draining,omitempty"` // takes no new sessions, and for a time keeps those that it has
	// Role is [RolePrefill] for a replica that only prefills for others, [RoleDecode] for one that decodes what others
	// prefill, or serves whole requests; "" (or "both") = it does all of this.
	Role string `json:"role,omitempty"`
	// Pair is a label, like "r7/tp4/nixl": only replicas with the same label prefill and decode one request together.
	// Printable ASCII without blanks, at most 256 bytes.
	Pair string `json:"pair,omitempty"`
	// KVBootstrap is the host:port at which a decode replica asks this one for KV blocks, for engines that have a
	// bootstrap server. Default: the host of the address, port 8998.
	KVBootstrap string `json:"kv_bootstrap,omitempty"`
	// KVEngineID is the engine's own name in transfers of KV blocks (Mooncake). At most 256 bytes.
	KVEngineID string `json:"kv_engine_id,omitempty"`
	// Instance changes when the replica is restarted: what it had cached is gone. "" = not reported. At most 256 bytes.
	// Registrations and resolvers report it; a fleet file has none.
	Instance string `json:"-"`
	// Stats are free-form numbers that the replica reports about itself.
	Stats map[string]float64 `json:"-"`
}

// Equal reports whether two sets of attributes are the same.
func (a Attributes) Equal(b Attributes) bool {
	return a.ID == b.ID && a.Address == b.Address && a.ServerName == b.ServerName && a.Zone == b.Zone && a.Node == b.Node &&
		a.Weight == b.Weight && a.MaxOngoing == b.MaxOngoing && a.KVEvents == b.KVEvents &&
		a.KVEventsReplay == b.KVEventsReplay && a.Instance == b.Instance && a.Ranks == b.Ranks &&
		a.Draining == b.Draining && a.Role == b.Role && a.Pair == b.Pair && a.KVBootstrap == b.KVBootstrap &&
		a.KVEngineID == b.KVEngineID && slices.Equal(a.Models, b.Models) &&
		slices.Equal(a.Adapters, b.Adapters) && maps.Equal(a.Stats, b.Stats)
}

// A Replica is one model server in a View. Its attributes do not change; what
// its methods report is live and may be read from any goroutine.
type Replica struct {
	state *state.Replica // first: with it and what follows a pick is done with a replica
	index int
	Attributes
	host any
}

// Index returns the replica's place in View.Replicas.
func (r *Replica) Index() int { return r.index }

// Host returns the handle that the host gave with the attributes.
func (r *Replica) Host() any { return r.host }

// Connected reports whether the host has a connection to the replica.
func (r *Replica) Connected() bool { return r.state.Up() }

// Ongoing returns how many reservations the replica has.
func (r *Replica) Ongoing() int { return int(r.state.Ongoing()) }

// QueuedTokens returns the uncached prompt tokens reserved on the replica and
// not yet prefilled.
func (r *Replica) QueuedTokens() int { return int(r.state.Book.Load() & state.TokenMask) }

// Waiting returns how long a call of this client has waited for its first message there, one of those that wait; 0 = none
// is known to wait. A call whose answer is one message does not count: its time is not that of a prefill.
func (r *Replica) Waiting(now time.Time) time.Duration {
	if picked := r.state.Book.Waits.Load(); picked != 0 {
		return max(now.Sub(time.Unix(0, picked)), 0)
	}
	return 0
}

// Full reports whether the replica has as many reservations as it may have, or has
// refused a request a moment ago.
func (r *Replica) Full() bool { return r.state.Full() }

// Capacity returns how many reservations the replica may have at once; 0 = no bound.
func (r *Replica) Capacity() int {
	if n := r.state.Capacity.Load(); n != state.NoBound {
		return int(n)
	}
	return 0
}

// PeerLoad returns what other clients are known to have on this replica: their requests, and their uncached prompt
// tokens not yet prefilled.
func (r *Replica) PeerLoad() (ongoing int, queuedTokens int64) {
	load := r.state.Peer.Load()
	return int(load >> state.TokenBits), load & state.TokenMask
}

// Drains reports whether the replica takes no new sessions, by its attributes or its own report.
func (r *Replica) Drains() bool { return r.Draining || r.state.Flags.Load()&state.Leaving != 0 }

// KVTokens returns how many tokens the replica's KV cache holds, 0 where that is not known.
func (r *Replica) KVTokens() int { return int(r.state.KVTokens.Load()) }

// Rate returns what the replica's load is divided by: its weight, times how fast it has
// shown to be relative to the others where the policy has it learned.
func (r *Replica) Rate() float64 { return r.state.Rate() }

// HomeWeight returns how many keys the replica is the home of, relative to others, as a look-aside server balances
// them; 0 = none does.
func (r *Replica) HomeWeight() float64 {
	if r.state == nil { // it is in no fleet
		return 0
	}
	return math.Float64frombits(r.state.HomeWeight.Load())
}
