package router

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A Tokenizer turns the text of a prompt into token ids.
type Tokenizer interface {
	// Tokenize returns the token ids of q.Prompt.Text, which are not changed
	// afterwards. It is called from the goroutine of the call, concurrently for
	// different requests, once for each and only if the policy uses prompts; it bounds
	// its own time. An error is counted; the prompt stays text if no ids come with it.
	Tokenize(ctx context.Context, q *policy.Request) ([]uint32, error)
}

// Options configure a Router. Only Policy is needed. A policy without Choose is none.
type Options struct {
	Policy policy.Policy
	// Prefill returns another value of Policy, for the prefill legs of requests where replicas have roles; nil = every
	// request is served whole.
	Prefill func() (policy.Policy, error)
	// Split decides, from the length of the prompt and the decision on the whole request, whether it is sent in two
	// legs: the simulator compares rules. nil = what costs less.
	Split func(prompt int, whole policy.Decision) bool
	// Plain decides for the requests that a Rollout keeps from Policy; none = there can be no Rollout. It observes
	// nothing.
	Plain policy.Policy
	// Shadow decides on every request too, and is not obeyed: it is counted. It learns where requests really went.
	Shadow policy.Policy
	// Tokenizer gives prompts of text their token ids before the policy sees them;
	// nil = they stay text. The Router closes it if it is an io.Closer.
	Tokenizer Tokenizer
	// MaxOngoing bounds the reservations of a replica that has no bound of its own; 0 = no bound.
	MaxOngoing int
	// MaxQueued bounds the requests that wait; 0 = that of the default config, negative = no bound.
	MaxQueued int
	// PrepareTimeout is the deadline of a Prepare that calls out; 0 = that of the default config.
	PrepareTimeout time.Duration
	// Ejection is when a replica is ejected, and how one that is new or back begins.
	// nil = none is ejected, and none begins slowly.
	Ejection *policy.Ejection
	// DrainGrace is how long a draining replica keeps the sessions that went there last; 0 = not at all.
	DrainGrace time.Duration
	// Node and Zone are where this process runs: replicas there are preferred.
	// Empty = no preference.
	Node, Zone string
	// Now and Rand are the clock and the randomness; nil = the real ones. Rand is
	// used under the Router's lock only.
	Now  func() time.Time
	Rand *rand.Rand
	// AfterFunc calls f, in a goroutine of its own, once d has passed, unless it is
	// stopped before; nil = time.AfterFunc. It belongs to Now.
	AfterFunc func(d time.Duration, f func()) (stop func())
}

func (o Options) withDefaults() Options {
	usual := policy.Config{}.WithDefaults()
	o.MaxQueued = cmp.Or(o.MaxQueued, int(usual.MaxQueuedRequests))
	o.PrepareTimeout = cmp.Or(o.PrepareTimeout, time.Duration(usual.PrepareTimeout))
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if o.AfterFunc == nil {
		o.AfterFunc = func(d time.Duration, f func()) func() {
			t := time.AfterFunc(d, f)
			return func() { t.Stop() }
		}
	}
	return o
}
