package kvaware

import (
	"cmp"
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cacheview"
	"github.com/warmpath/warmpath/internal/rendezvous"
	"github.com/warmpath/warmpath/internal/strict"
)

// Name is the policy's name in a config.
const Name = "kv_aware"

// The weights of the cost. They were found with the simulator on the conversation trace.
const (
	// uncachedWeight is what a prompt token counts that the replica would have to compute
	// for this request. Tokens of others that wait there, and active requests, count 1.
	// Higher keeps prompts with their caches; at 1 caches are given up as the fleet fills.
	uncachedWeight = 3
	// nearTie is by how many tokens a cost may be above the least and still counts as equal to
	// it; the drift of the peer load, where that is more. Among equals what is cached decides, then
	// the least load or the rendezvous order, see best: docs/routing-quality.md, row "near ties".
	nearTie = 4000
	// unshared is after how many prompts in a row of which nothing was cached anywhere the rendezvous order decides
	// between equals: then the least loaded is no better a place for what comes next, nothing-shared-110 of the matrix.
	unshared = 50
	// speedStep is how far one call moves the logarithm of the speed of a prefill.
	speedStep = 0.02
	// sameBlocks is by how many tokens what is cached may differ from what was sent there because blocks end elsewhere,
	// and 1/textError by which part of it because a part of a text has not as many tokens as its length lets expect.
	sameBlocks, textError = 64, 8
)

// credits are how much of a cached token on each tier need not be computed.
var credits = [policy.Tiers]float64{1, 0.75, 0.25}

// Config is the policy's config. Its zero value is the default config.
type Config struct {
	// BlockTokens is the block of token ids until an engine reports its own; 0 = 16, at most
	// 65536. That of a text is four bytes for every token of it. All clients must use the same.
	BlockTokens int `json:"block_tokens,omitempty"`

	// IndexBytes bounds the memory of the index; 0 = 1 GiB, at least 1 MiB. It is taken as it is
	// needed: about 20 bytes for every block that one replica holds, less where several
	// hold the same. Where superblocks are reported, a sixteenth of it, at least 1 MiB,
	// comes on top.
	IndexBytes int64 `json:"index_bytes,omitempty"`

	// KVTokens is the size of a replica's KV cache in tokens, for replicas that report
	// neither their contents nor their size; 0 = 1,000,000, Off = no bound but IndexBytes.
	KVTokens policy.Limit `json:"kv_tokens,omitempty" zero:"\"off\" for no bound"`
}

// Name implements [policy.NamedConfig].
func (Config) Name() string { return Name }

// WithDefaults returns the config with every default written out.
func (c Config) WithDefaults() Config {
	c.BlockTokens = cmp.Or(c.BlockTokens, 16)
	c.IndexBytes = cmp.Or(c.IndexBytes, 1<<30)
	c.KVTokens = cmp.Or(c.KVTokens, 1_000_000)
	return c
}

// validate checks a config with its defaults.
func (c Config) validate() error {
	n := c.KVTokens
	return cmp.Or(
		strict.Want(n == policy.Off || n >= 0 && n <= 1<<50, "kv_tokens: it is %v, want at least 0, or off", n),
		cacheview.CheckSizes(c.BlockTokens, c.IndexBytes),
	)
}

// kvAware is the policy; it belongs to one Router.
type kvAware struct {
	caches     *cacheview.Index
	popularity *rendezvous.Popularity
	recent     recent

	// What follows belongs to Choose, and so to the Router's lock.
	choosing rendezvous.Scorer
	options  []option

	misses atomic.Int32     // prompts in a row of which nothing was cached anywhere
	reuse  rendezvous.Reuse // what homes cache that this client did not send there
	speed  atomic.Uint64    // tokens a second that a prompt's first message takes, as math.Float64bits; 0 = not known
}

// New returns a policy, or an error that names the field that is out of bounds.
func New(c Config) (policy.Policy, error) {
	p, err := build(c)
	if err != nil {
		return policy.Policy{}, err
	}
	return p.policy(), nil
}

func (p *kvAware) policy() policy.Policy {
	return policy.Policy{
		Uses:    policy.UsesSession | policy.UsesPrompt | policy.UsesLoad,
		Prepare: p.prepare,
		Choose:  p.choose,
		Preview: p.preview,
		Observer: policy.Observer{
			Routed:          p.routed,
			Completed:       p.completed,
			Withdrawn:       p.withdrawn,
			FleetChanged:    p.caches.FleetChanged,
			CacheChanged:    p.caches.CacheChanged,
			CapacityChanged: p.caches.SetCapacity,
		},
		IndexStats: p.caches.Stats,
	}
}

func build(c Config) (*kvAware, error) {
	c = c.WithDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &kvAware{
		caches: cacheview.New(cacheview.Options{
			MaxBytes: c.IndexBytes,
			Grain:    rendezvous.GrainOf(c.BlockTokens),
			KVTokens: max(int(c.KVTokens), 0),
		}),
		popularity: rendezvous.NewPopularity(),
	}, nil
}

// prepare reads and counts the prompt the first time for a request, and searches the index.
func (p *kvAware) prepare(_ context.Context, q *policy.Request, v policy.View) error {
	s, _ := q.Prepared.(*prepared)
	fleet := p.caches.Fleet(v)
	if s == nil {
		if q.Prompt.Empty() && q.Session == "" {
			return nil
		}
		if s, _ = q.Spare().(*prepared); s == nil {
			s = new(prepared)
		}
		*s = prepared{}
		p.popularity.Read(&s.Prompt, q, p.caches.Grain(q.Model), p.caches.Seed(q), fleet.Units())
		q.Prepared = s
	}
	s.since = p.recent.before.Load() // before the index is searched
	p.find(s, fleet)
	return nil
}

// routed notes that the replica will hold the prompt.
func (p *kvAware) routed(q *policy.Request, d policy.Decision) {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return
	}
	p.popularity.Sent(&s.Prompt)
	if p.misses.Add(1); !s.unfound {
		p.misses.Store(0)
	}
	p.caches.Member(d.Replica).Routed(&s.predicted, max(d.Rank(), 0), cacheview.Route{
		Blocks: s.Hashes, BlockTokens: s.TokensPerBlock(),
		Work:  policy.RequestCost + int64(max(s.Tokens-d.MatchedTokens, 0)),
		Alone: d.Replica.Ongoing() <= 1,
	})
	p.recent.routed(s.number)
}

func (p *kvAware) withdrawn(q *policy.Request, _ policy.Decision) {
	if s, _ := q.Prepared.(*prepared); s != nil {
		p.recent.remove(s)
	}
}

func (p *kvAware) completed(q *policy.Request, d policy.Decision, o policy.Outcome) {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return
	}
	p.popularity.Ended(&s.Prompt, o.Sent)
	s.predicted.End(o.Prefilled())
	switch {
	case !o.Prefilled():
		p.recent.remove(s)
	case o.Usage.CachedTokens >= 0 && s.Tokens > 0:
		p.measured(s, d.MatchedTokens, o.Usage)
	}
	if o.FirstMessage > 0 && s.Tokens > 0 {
		cached := o.Usage.CachedTokens
		if cached < 0 {
			cached = d.MatchedTokens
		}
		p.timed(max(s.Tokens-cached, 0), o.FirstMessage)
	}
}

// timed learns from how long the first message of a prompt took of which so many tokens were computed: the geometric
// mean, which a few long waits hardly move.
func (p *kvAware) timed(computed int, took time.Duration) {
	speed := float64(computed+policy.RequestCost) / max(took, time.Millisecond).Seconds()
	if was := math.Float64frombits(p.speed.Load()); was > 0 {
		speed = was * math.Pow(speed/was, speedStep)
	}
	p.speed.Store(math.Float64bits(speed))
}

// measured learns from what the engine had cached of a prompt of which so many tokens were known to be cached.
func (p *kvAware) measured(s *prepared, known int, u policy.Usage) {
	cached := u.CachedTokens
	if u.PromptTokens > 0 { // the engine's tokens may not be those that this client counts
		cached = int(float64(cached) * float64(s.Tokens) / float64(u.PromptTokens))
	}
	margin := sameBlocks
	if s.Unit > 1 {
		margin += known / textError
	}
	p.reuse.Saw(known+margin, cached, s.Tokens)
	if s.shows {
		shared := s.CoveredTokens(s.First)
		p.reuse.Learn(cached-shared, s.Tokens-shared)
	}
}
