package router

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/load"
)

// headStart is what a level of priority is worth in the queue.
const headStart = 10 * time.Second

// Options configure a Router. Only Policy is needed. A policy without Choose is none.
type Options struct {
	Policy policy.Policy
	// Plain decides for the requests that a Rollout keeps from Policy; none = there can be no Rollout. It observes nothing.
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
	// HeadStart is what a level of priority is worth in the queue; 0 = 10s,
	// negative = nothing.
	HeadStart time.Duration
	// RequestCost is what an active request adds to a replica's load, in tokens;
	// 0 = policy.RequestCost, negative = nothing.
	RequestCost float64
	// PrepareTimeout is the deadline of a Prepare that calls out; 0 = that of the default config.
	PrepareTimeout time.Duration
	// FixedRates keeps the replicas' weights as their rates: none is learned.
	FixedRates bool
	// ReportTTL is how long a replica's Report of its load counts; 0 = load.DefaultReportTTL.
	ReportTTL time.Duration
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
	o.HeadStart = max(cmp.Or(o.HeadStart, headStart), 0)
	o.RequestCost = max(cmp.Or(o.RequestCost, policy.RequestCost), 0)
	o.PrepareTimeout = cmp.Or(o.PrepareTimeout, time.Duration(usual.PrepareTimeout))
	o.ReportTTL = cmp.Or(o.ReportTTL, load.DefaultReportTTL)
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

// FromConfig builds the policy of a config and a Router around it, over an empty fleet. adjust,
// which may be nil, sees the options before the Router does: the clock, the
// randomness, and whatever the host sets itself.
func FromConfig(c *policy.Config, adjust func(*Options)) (*Router, error) {
	full := c.WithDefaults()
	p, err := full.NewPolicy()
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	shadow, err := full.NewShadow()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("config: %w", err), closePolicies(p))
	}
	plain, err := policy.New(policy.Plain, nil)
	if err != nil {
		return nil, errors.Join(err, closePolicies(p, shadow))
	}
	o := Options{
		Policy:         p,
		Plain:          plain,
		Shadow:         shadow,
		MaxOngoing:     full.MaxOngoingRequests,
		MaxQueued:      int(full.MaxQueuedRequests),
		PrepareTimeout: time.Duration(full.PrepareTimeout),
		Ejection:       &full.Ejection,
		DrainGrace:     max(time.Duration(full.DrainGrace), 0),
		Node:           full.Node,
		Zone:           full.Zone,
	}
	if adjust != nil {
		adjust(&o)
	}
	r, err := NewRouter(o)
	if err == nil {
		err = r.Rollout.Set(full.Rollout())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("config: %w", err), closePolicies(p, shadow))
	}
	return r, nil
}

// closePolicies gives back what policies hold that no Router was built around.
func closePolicies(all ...policy.Policy) (err error) {
	for _, p := range all {
		if p.Close != nil {
			err = errors.Join(err, p.Close())
		}
	}
	return err
}
