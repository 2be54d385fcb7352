// Package state holds what the Router keeps in the types of package policy: a replica's counters, and what belongs to
// the Router in a request and in a decision. It is a leaf, so that policy can be public and the Router internal.
package state

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// A Replica is the live part of a replica; it outlives changes of the attributes. The Router writes it under its
// lock, but for what Book has; everything may be read without it.
type Replica struct {
	Owner any   // what the Router keeps beside it; set once
	Book  *Book // shared by the Routers of a host, one after the other; set once

	Flags    atomic.Uint32 // Connected, Barred, Leaving, Declared, Coming
	Suspect  atomic.Bool   // its last calls failed
	Links    atomic.Uint32 // how many connections there were, one after the other
	Max      atomic.Int64  // reservations allowed at once: Capacity, or less while the replica refuses
	Capacity atomic.Int64  // the bound on reservations; NoBound = none
	InvRate  atomic.Uint64 // 1 / rate, as math.Float64bits
	Peer     atomic.Int64  // load of other clients, as in Book
	KVTokens atomic.Int64  // size of the KV cache; 0 = not known
	// HomeWeight is how many keys the replica is the home of, relative to others, as math.Float64bits; 0 = no look-aside
	// server balances the homes.
	HomeWeight atomic.Uint64
}

// A Book is what every pick of a replica writes. It has a cache line of its own, which keeps that from slowing reads of
// the rest.
type Book struct {
	_            [cacheLine]byte
	atomic.Int64               // ongoing<<TokenBits | reserved prefill tokens
	Homes        atomic.Uint32 // calls whose home it is, since TakeHomes
	Spilled      atomic.Uint32 // those of them that went elsewhere
	// Waits is when one of the calls that wait there for a first message was picked, in ns since 1970; 0 = none is known.
	// Once that call waits no more, the next pick takes its place.
	Waits atomic.Int64
	_     [cacheLine]byte
}

const cacheLine = 64

// The bits of Replica.Flags. A replica is picked where only the first is set.
const (
	Connected = 1 << iota
	Barred    // by its health
	Leaving   // it reports that it drains
	Declared  // it drains by its attributes
	Coming    // it is being connected for the first time
)

// NoBound is more reservations than there are.
const NoBound = math.MaxInt64

// Book keeps both counters of a replica in one word, so that a pick stores once. A reservation is charged at most
// MaxPrefill tokens, so that the tokens of 2^16 of the longest prompts fit beside the ongoing.
const (
	TokenBits  = 40
	TokenMask  = 1<<TokenBits - 1
	MaxPrefill = 1 << 24
)

// Up reports whether the replica is connected.
func (r *Replica) Up() bool { return r.Flags.Load()&Connected != 0 }

// Set sets or clears a flag.
func (r *Replica) Set(bit uint32, on bool) {
	if on {
		r.Flags.Or(bit)
	} else {
		r.Flags.And(^bit)
	}
}

// Full reports whether the replica has as many reservations as it may have.
func (r *Replica) Full() bool { return r.Book.Load()>>TokenBits >= r.Max.Load() }

// Ongoing returns the number of reservations.
func (r *Replica) Ongoing() int64 { return r.Book.Load() >> TokenBits }

// UnderWay returns how many requests are known to be under way, those of other clients too.
func (r *Replica) UnderWay() int64 { return r.Book.Load()>>TokenBits + r.Peer.Load()>>TokenBits }

// Rate returns what the load of the replica is divided by.
func (r *Replica) Rate() float64 { return 1 / math.Float64frombits(r.InvRate.Load()) }

// TakeHomes returns the calls by home since it was called last.
func (r *Replica) TakeHomes() (calls, spilled uint32) {
	spilled = r.Book.Spilled.Swap(0) // first: a call that spills counts at its home before
	return r.Book.Homes.Swap(0), spilled
}

// StoreKey is the context key of the store that custom policies share.
type StoreKey struct{}

// A Side is what decides for a request while a rollout is in force.
type Side uint8

// The sides.
const (
	Undecided Side = iota
	ByPolicy
	ByPlain
)

// A Resort is what a request takes where no other replica may serve it. Each takes what those before it take.
type Resort uint8

// The resorts.
const (
	NoResort     Resort = iota
	SlowStarters        // beyond their share
	Leavers             // that report that they drain
	Ejected             // any
)

// A Request is the Router's part of a request. The zero value is that of a new one.
type Request struct {
	AnyModel  bool   // no replica of the fleet declares the model: it filters nothing
	Tokenized bool   // the Tokenizer was called for the prompt
	Resort    Resort // during a choice: what is better than none
	Plain     bool   // the policy is not called in the choice under way: Options.Plain decides
	Query     bool   // the pick under way is a Query
	Final     bool   // the session ends with the request
	Answer    Answer // how the host learns that the replica has answered
	Side      Side   // what decides, where a rollout is in force

	Origin   Origin // nil = only the key arrived
	Prepared uint64 // the number of the Router whose policy prepared it; 0 = none
	Epoch    uint64 // of the View that Prepare saw
	Attempt  int
	// TextBytes is the length of a prompt of text in bytes; 0 = it is token ids, or not counted yet.
	TextBytes int
	Lot       uint64 // see policy.View.Lot; 0 = not drawn
	Tried     []string
	QueuedAt  uint64 // the number of the Router that gave it Seq and Came
	Seq       uint64
	Came      time.Time
	Ahead     int64    // prompt tokens queued at the replica, those of other clients too, at the last pick
	Keeper    *Replica // drains, and keeps this session
	Shadow    any      // as the shadow policy sees it; nil = there is none
	Legs      *Legs    // it may be sent in two, or this is a prefill leg; nil = it is served whole
	Sets      *Sets    // of Exclude, Allow and Tried where they are long; nil = they are not
	Spare     *any     // memory for Prepare, of a request that has ended; the first copy of this request to need it takes it

	Mark *Mark // of the last reservation, in its memory; nil = there was none
}

// Legs are those of a request that may be sent in two.
type Legs struct {
	Owner any      // what the Router keeps beside it
	Only  bool     // those that have a role serve legs only, those without one whole requests only
	Leg   bool     // during a choice: it is for a leg
	Pairs []string // during a choice: the pair labels that a replica may have; nil = any
}

// Take reports whether a replica with a role and a pair label may be given the request, or its leg.
func (l *Legs) Take(role, pair string) bool {
	return (!l.Only || l.Leg == (role != "")) && (l.Pairs == nil || slices.Contains(l.Pairs, pair))
}

// A Mark is what remains of an attempt after its end: what outlier detection judges it by.
type Mark struct {
	Principal string // whose evidence it is; "" = none has a name
	Picked    time.Time
	Work      float64 // tokens before its first message
	Answer    uint8   // state.Answer
	Probe     bool    // it was sent to see whether the replica is back
}

// Watched reports whether the host learns that the replica has answered.
func (m *Mark) Watched() bool { return m.Answer != 0 }

// An Origin is where a request key was taken from.
type Origin interface {
	// Message returns the request message, nil where it is not at hand.
	Message() any
	// Header returns the values of a metadata key or HTTP header; case does not matter.
	Header(key string) []string
}

// A Decision is the Router's part of a decision.
type Decision struct {
	Probe    bool
	Plain    bool   // Options.Plain decided, not the policy
	Decode   bool   // it is for a decode leg
	Chosen   bool   // by Choose of the policy, which may have noted it
	Observed bool   // the policy observed the route, so it observes the end
	Rank     int32  // one more than the rank; 0 = none was chosen
	Prefill  *Legs  // of the request whose prefill leg it is for; nil = it is for none
	Route    *Route // to share when the replica answers; nil = none
}

// A Route is what is shared of where a prompt went.
type Route struct {
	Superblocks []uint64
	Shared      atomic.Bool
}
