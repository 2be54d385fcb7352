package prefixaffinity

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cacheview"
	"github.com/warmpath/warmpath/internal/rendezvous"
	"github.com/warmpath/warmpath/internal/strict"
)

// Name is the policy's name in a config.
const Name = "prefix_cache_affinity"

// What to do with a request whose prefix no replica holds.
const (
	OnMissRendezvous  = "rendezvous"   // the first in the rendezvous order within the bound
	OnMissLeastLoaded = "least_loaded" // the least loaded; many clients then fill every cache with the same prompts
	OnMissSmallest    = "smallest"     // Ray's rule as a whole: see Config.OnMiss
)

// A replica is passed over when its load is above that of the least loaded by more
// than loadSlack tokens, or the drift of the peer load if that is more, and
// reuseWeight times the tokens that it is expected to have cached. Higher keeps
// prompts with their caches, lower spreads load. The values were found with the
// simulator on the conversation trace.
const (
	loadSlack   = 4000
	reuseWeight = 3
)

// Config is the policy's config. Its zero value is the default config.
type Config struct {
	// MatchRateThreshold is the least part of a prompt, less what is shared, that a
	// replica must hold to be preferred for it; 0 = 0.1, at most 1, Off = none. Higher spreads load better
	// and loses short matches.
	MatchRateThreshold policy.Limit `json:"match_rate_threshold,omitempty" zero:"\"off\" to prefer every match"`

	// BlockTokens is the block of token ids; 0 = 16, at most 65536. That of a text is
	// four bytes for every token of it. Best is the engine's own. All clients must use the
	// same, or their orders differ. Smaller blocks match more exactly and cost time and
	// index. Reported caches are used if they come in blocks of BlockTokens, or in
	// superblocks and BlockTokens divides 512.
	BlockTokens int `json:"block_tokens,omitempty"`

	// IndexBytes bounds the memory of the prefix index; 0 = 64 MiB, at least 1 MiB. Where
	// superblocks are reported, a sixteenth of it, at least 1 MiB, comes on top.
	IndexBytes int64 `json:"index_bytes,omitempty"`

	// OnMiss is where a request goes whose prefix no replica holds; "" = OnMissRendezvous. OnMissSmallest is
	// Ray's rule as a whole: matches count whether or not they are shared, loads do
	// not matter, and on a miss the replicas that were sent the fewest different bytes
	// are preferred; among equals the fewest ongoing requests decide.
	OnMiss string `json:"on_miss,omitempty"`

	// ImbalancedThreshold turns affinity off, for the fewer ongoing of two at
	// random, while the ongoing requests of the replicas in question differ by
	// more. 0 and Off = never: the load bound, which is per replica, does it better.
	ImbalancedThreshold policy.Limit `json:"imbalanced_threshold,omitempty" zero:"0.5 for any imbalance, \"off\" for never"`
}

// Name implements [policy.NamedConfig].
func (Config) Name() string { return Name }

// WithDefaults returns the config with every default written out.
func (c Config) WithDefaults() Config {
	c.MatchRateThreshold = cmp.Or(c.MatchRateThreshold, 0.1)
	c.BlockTokens = cmp.Or(c.BlockTokens, 16)
	c.IndexBytes = cmp.Or(c.IndexBytes, 64<<20)
	c.OnMiss = cmp.Or(c.OnMiss, OnMissRendezvous)
	c.ImbalancedThreshold = cmp.Or(c.ImbalancedThreshold, policy.Off)
	return c
}

// validate checks a config with its defaults.
func (c Config) validate() error {
	rate, most := c.MatchRateThreshold, c.ImbalancedThreshold
	share := rate == policy.Off || rate >= 0 && rate <= 1
	known := slices.Contains([]string{OnMissRendezvous, OnMissLeastLoaded, OnMissSmallest}, c.OnMiss)
	return cmp.Or(
		strict.Want(share, "match_rate_threshold: it is %v, want 0 to 1, or off", rate),
		strict.Want(known, "on_miss: it is %q, want rendezvous, least_loaded or smallest", c.OnMiss),
		strict.Want(most == policy.Off || most >= 0, "imbalanced_threshold: it is %v, want at least 0, or off", most),
		cacheview.CheckSizes(c.BlockTokens, c.IndexBytes),
	)
}

const (
	// maxHolders bounds the holders kept with a request. Those behind them are
	// found by the rendezvous order, in which a prefix fans out anyway.
	maxHolders = 32
	// head is how many first places of the rendezvous order are kept with a request.
	head = 4
)

// affinity is the policy; it belongs to one Router.
type affinity struct {
	config     Config
	rate       float64 // Config.MatchRateThreshold
	ray        bool    // on_miss: smallest
	caches     *cacheview.Index
	popularity *rendezvous.Popularity

	// choosing belongs to Choose, and so to the Router's lock.
	choosing rendezvous.Scorer

	reuse rendezvous.Reuse
	// reported is set once what replicas cache is reported: a match is more than a guess from what was sent here then,
	// and the homes need no balance.
	reported atomic.Bool
}

// prepared is what Prepare leaves with a request. What is read from the prompt
// stays for all attempts; what is found for it is found again for another fleet.
type prepared struct {
	rendezvous.Prompt
	predicted cacheview.Prediction // of the attempt under way
	bytes     int64                // that it added to Member.SentBytes

	// Found for a fleet.
	fleet  *cacheview.Fleet
	shared int // leading blocks that decide nothing
	// places are so many holders that match, the deepest first, else in the rendezvous
	// order, and behind them the beginning of the rendezvous order.
	places  []rendezvous.Place
	holders int

	few [head + 8]rendezvous.Place
}

// New returns a policy, or an error that names the field that is out of bounds.
func New(c Config) (policy.Policy, error) {
	p, err := build(c)
	if err != nil {
		return policy.Policy{}, err
	}
	return p.policy(), nil
}

func (p *affinity) policy() policy.Policy {
	return policy.Policy{
		Uses:    policy.UsesSession | policy.UsesPrompt | policy.UsesLoad,
		Prepare: p.prepare,
		Choose:  p.choose,
		Preview: p.choose, // another sample
		Observer: policy.Observer{
			Routed:          p.routed,
			Completed:       p.completed,
			FleetChanged:    p.caches.FleetChanged,
			CacheChanged:    p.cacheChanged,
			CapacityChanged: p.caches.SetCapacity,
		},
		IndexStats: p.caches.Stats,
	}
}

func build(c Config) (*affinity, error) {
	c = c.WithDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &affinity{
		config: c,
		rate:   max(float64(c.MatchRateThreshold), 0),
		ray:    c.OnMiss == OnMissSmallest,
		caches: cacheview.New(cacheview.Options{
			MaxBytes: c.IndexBytes,
			Grain:    rendezvous.GrainOf(c.BlockTokens),
		}),
		popularity: rendezvous.NewPopularity(),
	}, nil
}

// prepare reads the prompt the first time for a request, and searches the index.
func (p *affinity) prepare(_ context.Context, q *policy.Request, v policy.View) error {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		if q.Prompt.Empty() && (q.Session == "" || p.ray) {
			return nil
		}
		if spare := q.State().Spare; spare != nil {
			s, _ = (*spare).(*prepared)
			*spare = nil
		}
		if s == nil {
			s = new(prepared)
		}
		*s = prepared{}
		p.read(s, q, len(v.Replicas()))
		q.Prepared = s
	}
	p.find(s, p.caches.Fleet(v))
	return nil
}

// read hashes the prompt and finds the key.
func (p *affinity) read(s *prepared, q *policy.Request, replicas int) {
	grain, seed := p.caches.Grain(q.Model), p.caches.Seed(q)
	if p.ray {
		s.Cut(q.Prompt, q.PromptTokens, grain, seed)
		s.Hashes = s.Hashes[:s.Length/s.Size] // full blocks only
		return
	}
	p.popularity.Read(&s.Prompt, q, grain, seed, replicas)
}

// find searches the index and puts the fleet in order.
func (p *affinity) find(s *prepared, f *cacheview.Fleet) {
	found := p.caches.Find(f, &s.Prompt)
	defer p.caches.Free(found)
	s.fleet = f
	if p.ray {
		s.places, s.holders = append(s.few[:0], found.Holders...), len(found.Holders)
		return
	}
	var first [head]rendezvous.Place
	top := rendezvous.First(first[:0], f.Replicas, found.Scores)
	for i := range top {
		top[i].Depth = int32(found.Any(int(top[i].At)))
	}
	s.shared = 0
	if len(f.Replicas) > 1 {
		s.shared = max(0, min(s.First, len(s.Hashes)-1)) // the last decides in any case
	}
	s.places = append(s.few[:0], s.matches(found, p.rate)...)
	s.holders = len(s.places)
	s.places = append(s.places, top...)
}

// matches returns the holders whose match, less what is shared, reaches the rate, in order.
func (s *prepared) matches(found *cacheview.Found, rate float64) []rendezvous.Place {
	shared, n := s.Covered(s.shared), 0
	for _, h := range found.Holders {
		if int(h.Depth) <= s.shared || float64(s.Covered(int(h.Depth))-shared) < rate*float64(s.Length-shared) {
			break // the deepest come first
		}
		n++
	}
	slices.SortFunc(found.Holders[:n], func(a, b rendezvous.Place) int {
		if a.Depth != b.Depth {
			return cmp.Compare(b.Depth, a.Depth)
		}
		if rs := s.fleet.Replicas; rendezvous.Before(found.Scores[a.At], rs[a.At], found.Scores[b.At], rs[b.At]) {
			return -1
		}
		return 1
	})
	return found.Holders[:min(n, maxHolders)]
}

// routed notes that the replica will hold the prompt.
func (p *affinity) routed(q *policy.Request, d policy.Decision) {
	s, _ := q.Prepared.(*prepared)
	if s == nil || len(s.Hashes) == 0 {
		return
	}
	m := p.caches.Member(d.Replica)
	if p.ray {
		p.countBytes(s, m)
	} else {
		p.popularity.Sent(&s.Prompt)
	}
	m.Routed(&s.predicted, 0, cacheview.Route{
		Blocks: s.Hashes, BlockTokens: s.TokensPerBlock(), Alone: d.Replica.Ongoing() <= 1,
	})
}

func (p *affinity) completed(q *policy.Request, d policy.Decision, o policy.Outcome) {
	s, _ := q.Prepared.(*prepared)
	if s == nil || len(s.Hashes) == 0 {
		return
	}
	p.popularity.Ended(&s.Prompt, o.Sent)
	s.predicted.End(o.Prefilled())
	switch {
	case !o.Prefilled() && p.ray:
		p.caches.Member(d.Replica).SentBytes.Add(-s.bytes)
	case o.Prefilled() && d.Reason == policy.ReasonRendezvous && o.Usage.CachedTokens >= 0:
		shared := s.CoveredTokens(s.shared)
		p.reuse.Learn(o.Usage.CachedTokens-shared, s.Tokens-shared)
	}
}

// cacheChanged takes what is reported of a replica, which goes before what was routed there. Ray's rule ignores it.
func (p *affinity) cacheChanged(changes []policy.CacheChange) {
	if !p.ray && len(changes) > 0 {
		p.reported.Store(true)
		p.caches.CacheChanged(changes)
	}
}

// countBytes adds to a replica what it does not hold of a prompt.
func (p *affinity) countBytes(s *prepared, m *cacheview.Member) {
	found := p.caches.Find(s.fleet, &s.Prompt)
	depth := 0
	if at, ok := s.fleet.Place(m); ok {
		depth = found.Any(at)
	}
	s.bytes = int64((len(s.Hashes) - depth) * s.Size)
	m.SentBytes.Add(s.bytes)
	p.caches.Free(found)
}
