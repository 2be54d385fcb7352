package policy

import (
	"time"

	"github.com/warmpath/warmpath/internal/router/state"
)

// A Reason is why a replica was picked. It is one list for spans, metrics,
// JSON and the look-aside server; custom policies may add their own words.
type Reason string

// The reasons of the built-in policies and of the Router.
const (
	ReasonRoundRobin      Reason = "round_robin"      // its place in the rotation
	ReasonLeastOfTwo      Reason = "least_of_two"     // fewer ongoing of two at random
	ReasonRing            Reason = "ring"             // the session's own replica on the ring
	ReasonRingFallback    Reason = "ring_fallback"    // the next on the ring: the ones before are full or gone
	ReasonPrefixMatch     Reason = "prefix_match"     // holds more of the prompt than most prompts share
	ReasonRendezvous      Reason = "rendezvous"       // the prompt's home: the first in its rendezvous order
	ReasonRendezvousSpill Reason = "rendezvous_spill" // later in the rendezvous order: the home is loaded, full or gone
	ReasonLeastLoaded     Reason = "least_loaded"     // least load
	ReasonKVCost          Reason = "kv_cost"          // least cost
	ReasonKVNearTie       Reason = "kv_near_tie"      // least loaded, or first in rendezvous order, of several as good
	ReasonDecode          Reason = "decode"           // decodes what another prefills: least requests under way
	ReasonPinned          Reason = "pinned"           // the caller named it
	ReasonCentral         Reason = "central"          // the look-aside server decided
	ReasonFallbackLocal   Reason = "fallback_local"   // the look-aside server did not answer
	ReasonNoKey           Reason = "no_key"           // the policy's key is missing: fewer ongoing of two
	ReasonRetry           Reason = "retry"            // an attempt before this one failed
	ReasonQueued          Reason = "queued"           // waited until a replica had room
)

// A Decision is what a policy answers: the replica, and why.
type Decision struct {
	// Replica is the one picked; nil when none that the request may use is
	// available, and then WaitFor has those to wait for.
	Replica *Replica
	Reason  Reason
	// Rule is the policy's own reason where Reason is retry, queued, central (the reason of
	// the server's policy) or fallback_local; else "". It is central for a retry that the server decided.
	Rule Reason
	// MatchedTokens are the leading prompt tokens predicted to be cached there.
	MatchedTokens int
	// ExpectedTokens are the leading prompt tokens that are likely cached there though none is known to be: what is
	// more than MatchedTokens is not charged.
	ExpectedTokens int
	// Home is the first in the rendezvous order of the prompt, so that a look-aside server can balance the homes;
	// nil = it is not available, or of no use to the policy.
	Home *Replica
	// Place is the replica's place in the rendezvous order or on the ring, 0 for the
	// first; -1 where the policy has none.
	Place int
	// Load is the replica's load when it was picked, before this reservation, in tokens.
	Load float64
	// WaitFor are the replicas whose room the request would wait for; nil = any.
	WaitFor []*Replica
	// Queued is how long the request waited in the queue.
	Queued time.Duration

	state state.Decision
}

// AnyRank leaves the data-parallel rank to the replica.
const AnyRank = -1

// maxRank is more ranks than a replica has.
const maxRank = 1 << 20

// SetRank chooses a data-parallel rank in the replica, or AnyRank, as where nothing is
// set. The Router drops a rank that the replica does not have.
func (d *Decision) SetRank(rank int) { d.state.Rank = int32(min(max(rank, AnyRank), maxRank)) + 1 }

// Rank returns the data-parallel rank chosen, or AnyRank.
func (d *Decision) Rank() int { return int(d.state.Rank) - 1 }

// Probe reports whether the request was sent to see whether a replica that was ejected is back.
func (d *Decision) Probe() bool { return d.state.Probe }

// To returns a decision for a policy that has no rendezvous order. Where the replica is nil the request waits for any.
func To(r *Replica, why Reason) Decision {
	return Decision{Replica: r, Reason: why, Place: -1}
}

// Wait returns the decision of a policy that found no replica available. With no
// replica given the request waits for any.
func Wait(replicas ...*Replica) Decision {
	return Decision{WaitFor: replicas, Place: -1}
}

// An Outcome is how a call that was routed ended.
type Outcome struct {
	Err error // nil on success; what the caller got otherwise
	// FirstMessage is the time from the pick to the first response message; 0 = none came.
	FirstMessage time.Duration
	Sent         bool // the request left the client
	// Fault is what the absence of a first message shows against the replica. GivenUp without an Err: it is not known
	// how the call ended.
	Fault Fault
	// Usage as the replica reported it.
	Usage Usage
}

// A Fault is what an outcome without a first message shows against the replica.
type Fault uint8

// The faults.
const (
	NoFault  Fault = iota // nothing: there was a message, or a status that speaks of the request
	Failed                // the replica failed, or the connection to it
	TimedOut              // the call's deadline passed first
	GivenUp               // the caller cancelled
	Late                  // the attempt was given up because its first message was late, and made elsewhere
	Doubtful              // the request is at fault, or the replica: the latter if the others answer such calls
)

// Prefilled reports whether the replica is taken to have the prompt in its cache: it answered, or the host does not
// know how the call ended.
func (o *Outcome) Prefilled() bool {
	return o.Sent && (o.Err == nil || o.FirstMessage > 0 || o.Usage.CachedTokens >= 0)
}

// Usage is what a replica reports of the tokens of one call. A field is negative
// where it was not reported.
type Usage struct {
	PromptTokens, OutputTokens, CachedTokens int
}

// NoUsage is the usage where a replica reports none.
var NoUsage = Usage{PromptTokens: -1, OutputTokens: -1, CachedTokens: -1}
