package prefixaffinity

import (
	"cmp"
	"context"
	"math"
	"math/bits"
	"sync"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/strict"
)

// Name is the policy's name in a config.
const Name = "prefix_cache_affinity"

// maxChars bounds what all replicas together hold: 256 MiB of hashes, if no two of them hold the same.
const maxChars = 32 << 20

// Config is the policy's config, with Ray's names. Its zero value is the default config.
type Config struct {
	// MatchRateThreshold is the least part of a prompt that a replica must hold to be preferred for it; 0 = 0.1, at most
	// 1, Off = every match counts.
	MatchRateThreshold policy.Limit `json:"match_rate_threshold,omitempty" zero:"\"off\" to prefer every match"`

	// ImbalancedThreshold turns affinity off while the requests under way on two replicas differ by more; 0 and Off =
	// never.
	ImbalancedThreshold policy.Limit `json:"imbalanced_threshold,omitempty" zero:"0.5 for any imbalance, \"off\" for never"`

	// EvictionThresholdChars is how many characters of prompts a replica may hold; 0 = 400,000.
	EvictionThresholdChars int `json:"eviction_threshold_chars,omitempty" zero:"at least 1"`

	// EvictionTargetChars is how many it holds after it has forgotten some; 0 = nine tenths of EvictionThresholdChars.
	EvictionTargetChars int `json:"eviction_target_chars,omitempty" zero:"at least 1"`
}

// Name implements [policy.NamedConfig].
func (Config) Name() string { return Name }

// WithDefaults returns the config with every default written out.
func (c Config) WithDefaults() Config {
	c.MatchRateThreshold = cmp.Or(c.MatchRateThreshold, 0.1)
	c.ImbalancedThreshold = cmp.Or(c.ImbalancedThreshold, policy.Off)
	c.EvictionThresholdChars = cmp.Or(c.EvictionThresholdChars, 400_000)
	c.EvictionTargetChars = cmp.Or(c.EvictionTargetChars, c.EvictionThresholdChars*9/10)
	return c
}

// validate checks a config with its defaults.
func (c Config) validate() error {
	rate, most := c.MatchRateThreshold, c.ImbalancedThreshold
	return cmp.Or(
		strict.Want(rate == policy.Off || rate >= 0 && rate <= 1, "match_rate_threshold: it is %v, want 0 to 1, or off", rate),
		strict.Want(most == policy.Off || most >= 0, "imbalanced_threshold: it is %v, want at least 0, or off", most),
		strict.Within("eviction_threshold_chars", c.EvictionThresholdChars, 1, maxChars),
		strict.Within("eviction_target_chars", c.EvictionTargetChars, 0, c.EvictionThresholdChars),
	)
}

// affinity is the policy; it belongs to one Router.
type affinity struct {
	Config
	rate float64 // MatchRateThreshold
	tree tree

	// mu guards tenants. The Router's lock may be held, and no other is taken under it.
	mu      sync.RWMutex
	tenants map[string]*tenant // by replica id
}

// New returns a policy, or an error that names the field that is out of bounds.
func New(c Config) (policy.Policy, error) {
	p, err := build(c)
	if err != nil {
		return policy.Policy{}, err
	}
	return p.policy(), nil
}

func build(c Config) (*affinity, error) {
	c = c.WithDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &affinity{Config: c, rate: max(float64(c.MatchRateThreshold), 0), tenants: make(map[string]*tenant)}, nil
}

func (p *affinity) policy() policy.Policy {
	return policy.Policy{
		Uses:       policy.UsesPrompt | policy.UsesOngoing,
		Prepare:    p.prepare,
		Choose:     p.choose,
		Preview:    p.choose, // another two at random
		Observer:   policy.Observer{Routed: p.routed, Completed: p.completed, FleetChanged: p.fleetChanged},
		IndexStats: p.stats,
	}
}

// prepared is what Prepare leaves with a request.
type prepared struct {
	path    []uint64 // chained hashes of the characters, or of blocks
	size    int      // characters in a block
	length  int      // characters of the prompt
	tokens  int      // of the prompt
	holders []holder

	// Of the attempt under way.
	had    int    // leading hashes that the replica held before
	number uint64 // of the insertion; 0 = none
}

// chars returns how many characters so many leading hashes are.
func (s *prepared) chars(hashes int) int { return min(hashes*s.size, s.length) }

// tokensOf returns how many tokens so many leading hashes are.
func (s *prepared) tokensOf(hashes int) int { return s.chars(hashes) * s.tokens / s.length }

// prepare hashes the prompt the first time for a request, and searches the tree.
func (p *affinity) prepare(_ context.Context, q *policy.Request, _ policy.View) error {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		if q.Prompt.Empty() {
			return nil
		}
		s = read(q)
		q.Prepared = s
	}
	s.holders = p.tree.match(s.path, s.holders[:0])
	return nil
}

// read hashes the characters of a prompt.
func read(q *policy.Request) *prepared {
	s := &prepared{size: 1, tokens: q.PromptTokens}
	h := kvindex.SeedFor(q.Model, q.Adapter, q.CacheSalt)
	state := uint64(h)
	add := func(c uint64) {
		state = chain(state, c)
		s.path = append(s.path, state)
	}
	switch prompt := &q.Prompt; {
	case prompt.Hashed != nil:
		s.path, s.size, s.length = prompt.Hashed.Hashes, prompt.Hashed.Size, prompt.Hashed.Length
		return s
	case len(prompt.Tokens) > 0:
		s.path = make([]uint64, 0, len(prompt.Tokens))
		for _, c := range prompt.Tokens {
			add(uint64(c) | 1<<32)
		}
	default:
		s.path = make([]uint64, 0, len(prompt.Text))
		for _, c := range prompt.Text {
			add(uint64(c))
		}
	}
	s.length = len(s.path)
	return s
}

// chain returns the hash of a prefix and the character behind it. A multiplication is enough: who sends prompts that
// collide gains a wrong match.
func chain(before, c uint64) uint64 {
	high, low := bits.Mul64(before^0x9e3779b97f4a7c15, c^0xd6e8feb86659fd93)
	return high ^ low ^ before<<1
}

func (p *affinity) of(id string) *tenant {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.tenants[id]
}

func (p *affinity) choose(q *policy.Request, v policy.View) policy.Decision {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return policy.To(v.LeastOfTwo(q), policy.ReasonNoKey)
	}
	wait := policy.Wait()
	for i := 0; ; i++ {
		pool, ok := v.Pool(q, i)
		if !ok {
			return wait
		}
		c := choice{affinity: p, prepared: s, pool: pool}
		if c.imbalanced() {
			return policy.To(v.LeastOfTwo(q), policy.ReasonLeastOfTwo)
		}
		if c.prefer(); c.best != nil {
			d := policy.To(c.best, c.why)
			d.MatchedTokens = s.tokensOf(c.depth(c.best))
			return d
		}
		if len(c.full) > 0 {
			wait = policy.Wait(c.full...)
		}
	}
}

// A choice is one run of Choose in one pool.
type choice struct {
	*affinity
	*prepared
	pool policy.Pool
	best *policy.Replica   // of the preferred replicas with room, the one with the fewest requests under way
	full []*policy.Replica // the preferred replicas, if none has room
	why  policy.Reason
}

// may reports whether a replica could be given the request if it had room.
func (c *choice) may(r *policy.Replica) bool {
	return r.Connected() && c.pool.View.Allowed(c.pool.Request, r) && !(c.pool.Untried && c.pool.Request.Tried(r))
}

// imbalanced reports whether the requests under way differ by more than the threshold.
func (c *choice) imbalanced() bool {
	if c.ImbalancedThreshold <= 0 {
		return false
	}
	least, most := math.MaxInt, 0
	for _, r := range c.pool.Replicas {
		if c.may(r) {
			n := underWay(r)
			least, most = min(least, n), max(most, n)
		}
	}
	return policy.Limit(most-least) > c.ImbalancedThreshold
}

// depth returns how many leading hashes of the prompt a replica holds.
func (c *choice) depth(r *policy.Replica) int {
	for i := range c.holders {
		if c.holders[i].id == r.ID {
			return c.holders[i].depth
		}
	}
	return 0
}

// prefer finds the replicas with the longest match, or those that hold the least, and takes the best of them.
func (c *choice) prefer() {
	c.why = policy.ReasonPrefixMatch
	longest := 0
	for _, r := range c.pool.Replicas {
		if c.may(r) {
			longest = max(longest, c.depth(r))
		}
	}
	matches := float64(c.chars(longest))/float64(c.length) >= c.rate
	if !matches {
		c.why = policy.ReasonLeastLoaded
	}
	least := int64(1 << 62)
	for _, r := range c.pool.Replicas {
		switch {
		case !c.may(r):
		case matches:
			if c.depth(r) == longest {
				c.take(r)
			}
		default:
			holds := int64(0)
			if t := c.of(r.ID); t != nil {
				holds = t.chars.Load()
			}
			if holds < least {
				least, c.best, c.full = holds, nil, nil
			}
			if holds == least {
				c.take(r)
			}
		}
	}
	if c.best != nil {
		c.full = nil
	}
}

// take takes a preferred replica. The first of those with the fewest requests is the best.
func (c *choice) take(r *policy.Replica) {
	switch {
	case r.Full() || !c.pool.Takes(r):
		if c.best == nil {
			c.full = append(c.full, r)
		}
	case c.best == nil || underWay(r) < underWay(c.best):
		c.best = r
	}
}

// underWay returns how many requests are known to be under way on a replica, those of other clients too.
func underWay(r *policy.Replica) int {
	peers, _ := r.PeerLoad()
	return r.Ongoing() + peers
}

// routed notes that the replica holds the prompt from now on.
func (p *affinity) routed(q *policy.Request, d policy.Decision) {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return
	}
	t := p.of(d.Replica.ID)
	if t == nil {
		return
	}
	s.had = 0
	for _, h := range p.tree.match(s.path, nil) {
		if h.tenant == t {
			s.had = h.depth
		}
	}
	s.number = p.tree.insert(t, s.path, s.size)
	p.mu.RLock()
	most := int64(min(p.EvictionThresholdChars, maxChars/max(len(p.tenants), 1)))
	p.mu.RUnlock()
	if n := t.chars.Load(); n > most {
		p.tree.shrink(t, n-most*int64(p.EvictionTargetChars)/int64(p.EvictionThresholdChars))
	}
}

// completed takes a prompt back that the replica has not computed.
func (p *affinity) completed(q *policy.Request, d policy.Decision, o policy.Outcome) {
	s, _ := q.Prepared.(*prepared)
	if s == nil || s.number == 0 || o.Prefilled() {
		return
	}
	if t := p.of(d.Replica.ID); t != nil {
		p.tree.undo(t, s.path, s.had, s.number)
	}
}

func (p *affinity) fleetChanged(c policy.FleetChange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range c.Removed {
		if t := p.tenants[r.ID]; t != nil {
			p.tree.remove(t)
			delete(p.tenants, r.ID)
		}
	}
	for _, r := range c.Added {
		p.tenants[r.ID] = &tenant{id: r.ID}
	}
}

func (p *affinity) stats() policy.IndexStats {
	x := &p.tree
	x.mu.Lock()
	defer x.mu.Unlock()
	return policy.IndexStats{Bytes: 8 * x.chars, Blocks: int64(x.nodes), Evictions: x.evict}
}
