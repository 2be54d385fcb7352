package routing

import (
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/internal/outlier"
)

// Attributes describe a replica. They come from the resolver or the fleet file
// and do not change during the life of a [Replica].
type Attributes struct {
	ID       string // stable; unique in the fleet
	Address  string // host:port
	Draining bool   // takes no new sessions; see Options.DrainGrace
	Ranks    int    // data-parallel ranks; 0 and 1 mean one
	Zone     string
	Node     string
	// Weight is the replica's share relative to others; 0 means 1. Until a rate
	// is learned it is the rate too, and where none is.
	Weight float64
	// MaxOngoing is how many requests may be under way at once; 0 means the
	// Router's default, negative means no bound.
	MaxOngoing int
	Models     []string // served; empty = not declared
	Adapters   []string // LoRA adapters loaded
	KVEvents   string   // where the engine publishes KV events
	// KVEventsReplay is where it repeats those that were missed; "" = nowhere.
	KVEventsReplay string
	// Instance changes when the replica is restarted: what it had cached is gone. "" = not said.
	Instance string
	// Stats are free-form numbers that the replica reports about itself.
	Stats map[string]float64
}

// Equal reports whether two sets of attributes are the same.
func (a Attributes) Equal(b Attributes) bool {
	return a.ID == b.ID && a.Address == b.Address && a.Zone == b.Zone && a.Node == b.Node &&
		a.Weight == b.Weight && a.MaxOngoing == b.MaxOngoing && a.KVEvents == b.KVEvents &&
		a.KVEventsReplay == b.KVEventsReplay && a.Instance == b.Instance && a.Ranks == b.Ranks &&
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
	live  *live // first: with it and what follows a pick is done with a replica
	index int
	Attributes
	host any
}

// live is the part of a replica that outlives changes of its attributes.
// Everything is written under the Router's mutex; the atomics may be read by
// policies and metrics without it.
type live struct {
	state    atomic.Uint32 // connectedBit, barred, leaving
	max      atomic.Int64  // bookings allowed at once: capacity, or less while the replica says it is full
	capacity atomic.Int64  // the bound on bookings; noBound = none
	invRate  atomic.Uint64 // 1 / rate, as math.Float64bits
	foreign  atomic.Int64  // what others have booked, as in book; see SetForeignLoad and Report
	kvTokens atomic.Int64  // size of its KV cache; 0 = not known
	number   uint32        // of the Router's giving; set once
	outlier  *outlier.Replica

	// The book is written by every pick: a cache line of its own keeps that from
	// slowing those who read the rest.
	_    [cacheLine]byte
	book atomic.Int64 // ongoing<<tokenBits | booked prefill tokens
	_    [cacheLine]byte

	// Guarded by the Router's mutex.
	waiters  line
	refusals refusals
	streams  int64     // what the connections take; 0 = not known
	factor   float64   // learned: rate = weight · factor
	told     int64     // what SetForeignLoad told last, as in book
	reported time.Time // of the Report that counts in its place; zero = none does
	listed   bool      // in Router.reports
	drains   time.Time // since when it takes no new sessions

	pace pace // guarded by rates.mu
}

const cacheLine = 64

// The bits of live.state. A replica is picked where only the first is set.
const (
	connectedBit = 1 << iota
	barred       // by its health
	leaving      // it said itself that it drains
	declared     // it drains by its attributes
)

func (l *live) up() bool { return l.state.Load()&connectedBit != 0 }

func (l *live) set(bit uint32, on bool) {
	if on {
		l.state.Or(bit)
	} else {
		l.state.And(^bit)
	}
}

// noBound is more bookings than there are.
const noBound = math.MaxInt64

// limit sets how many bookings the replica may have at once; not positive = no bound.
func (l *live) limit(n int) {
	if n <= 0 {
		n = noBound
	}
	l.capacity.Store(int64(n))
	l.bound()
}

// setRate sets what the load is divided by, from the weight and what was learned. A
// weight that is not positive counts as 1.
func (l *live) setRate(weight float64) {
	inv := 1 / l.factor
	if weight > 0 {
		inv /= weight
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
func (r *Replica) Connected() bool { return r.live.up() }

// Ongoing returns how many bookings the replica has.
func (r *Replica) Ongoing() int { return int(r.live.book.Load() >> tokenBits) }

// QueuedTokens returns the uncached prompt tokens booked on the replica and
// not yet prefilled.
func (r *Replica) QueuedTokens() int { return int(r.live.book.Load() & tokenMask) }

// Full reports whether the replica has as many bookings as it may have, or has said
// a moment ago that it takes no more.
func (r *Replica) Full() bool { return r.live.book.Load()>>tokenBits >= r.live.max.Load() }

// Capacity returns how many bookings the replica may have at once; 0 = no bound.
func (r *Replica) Capacity() int {
	if n := r.live.capacity.Load(); n != noBound {
		return int(n)
	}
	return 0
}

func (r *Replica) serves(model string) bool {
	return len(r.Models) == 0 || slices.Contains(r.Models, model)
}
