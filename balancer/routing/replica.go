package routing

import (
	"maps"
	"math"
	"slices"
	"sync/atomic"
)

// Attributes describe a replica. They come from the resolver or the fleet file
// and do not change during the life of a [Replica].
type Attributes struct {
	ID      string // stable; unique in the fleet
	Address string // host:port
	Zone    string
	Node    string
	// Weight is the replica's share relative to others; 0 means 1. Until a rate
	// is learned it is the rate too.
	Weight float64
	// MaxOngoing is how many requests may be under way at once; 0 means the
	// Router's default, negative means no bound.
	MaxOngoing int
	Models     []string // served; empty = not declared
	Adapters   []string // LoRA adapters loaded
	KVEvents   string   // where the engine publishes KV events
	Draining   bool     // takes no new requests
	// Stats are free-form numbers that the replica reports about itself.
	Stats map[string]float64
}

// Equal reports whether two sets of attributes are the same.
func (a Attributes) Equal(b Attributes) bool {
	return a.ID == b.ID && a.Address == b.Address && a.Zone == b.Zone && a.Node == b.Node &&
		a.Weight == b.Weight && a.MaxOngoing == b.MaxOngoing && a.KVEvents == b.KVEvents &&
		a.Draining == b.Draining && slices.Equal(a.Models, b.Models) &&
		slices.Equal(a.Adapters, b.Adapters) && maps.Equal(a.Stats, b.Stats)
}

// A Member is one replica as the host reports it to [Router.SetFleet].
type Member struct {
	Attributes
	// Host is the host's own handle, given back by Replica.Host. It must be
	// comparable; a pointer as a rule.
	Host any
}

// A Replica is one model server in a View. Its attributes do not change; what
// its methods report is live and may be read from any goroutine.
type Replica struct {
	Attributes
	index int
	host  any
	live  *live
}

// live is the part of a replica that outlives changes of its attributes.
// Everything is written under the Router's mutex; the atomics may be read by
// policies and metrics without it.
type live struct {
	connected atomic.Bool
	max       atomic.Int64  // bookings allowed at once; 0 = no bound
	invRate   atomic.Uint64 // 1 / rate, as math.Float64bits
	foreign   atomic.Int64  // what others have booked, as in book; see SetForeignLoad

	// The book is written by every pick: a cache line of its own keeps that from
	// slowing those who read the rest.
	_    [cacheLine]byte
	book atomic.Int64 // ongoing<<tokenBits | booked prefill tokens
	_    [cacheLine]byte

	waiters fifo // guarded by the Router's mutex
}

const cacheLine = 64

// limit sets how many bookings the replica may have at once; negative = no bound.
func (l *live) limit(n int) { l.max.Store(int64(max(n, 0))) }

// setRate sets what the load is divided by; what is not positive counts as 1.
func (l *live) setRate(rate float64) {
	inv := 1.0
	if rate > 0 {
		inv = 1 / rate
	}
	l.invRate.Store(math.Float64bits(inv))
}

// The book keeps both counters of a replica in one word, so that a pick stores
// once. A booking is charged at most maxPrefill tokens, so that the tokens of
// 2^16 of the longest prompts fit beside the ongoing.
const (
	tokenBits  = 40
	tokenMask  = 1<<tokenBits - 1
	maxPrefill = 1 << 24
)

// Index returns the replica's place in View.Replicas.
func (r *Replica) Index() int { return r.index }

// Host returns the handle that the host gave in [Member].
func (r *Replica) Host() any { return r.host }

// Connected reports whether the host has a connection to the replica.
func (r *Replica) Connected() bool { return r.live.connected.Load() }

// Ongoing returns how many bookings the replica has.
func (r *Replica) Ongoing() int { return int(r.live.book.Load() >> tokenBits) }

// QueuedTokens returns the uncached prompt tokens booked on the replica and
// not yet prefilled.
func (r *Replica) QueuedTokens() int { return int(r.live.book.Load() & tokenMask) }

// Full reports whether the replica has as many bookings as it may have.
func (r *Replica) Full() bool {
	most := r.live.max.Load()
	return most > 0 && r.live.book.Load()>>tokenBits >= most
}

// Capacity returns how many bookings the replica may have at once; 0 = no bound.
func (r *Replica) Capacity() int { return int(r.live.max.Load()) }

func (r *Replica) serves(model string) bool {
	return len(r.Models) == 0 || slices.Contains(r.Models, model)
}
