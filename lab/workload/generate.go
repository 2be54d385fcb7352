package workload

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/zeebo/xxh3"
)

// nominalToken is the time that a generated conversation allows for each token of an answer before the
// user's think time begins, so that open-loop turns seldom overtake the answers they contain.
const nominalToken = 25 * time.Millisecond

// maxReasoning bounds the long tail of reasoning outputs, to fit the context of common models.
const maxReasoning = 32768

// Spec asks for a generated workload.
type Spec struct {
	// Name is one of Names.
	Name string
	// Rate is the mean number of requests, all turns counted, per second.
	Rate float64
	// Unshared is the least share of the prompt tokens that no other request has, in [0, 1): where the
	// workload shares more, prompts that share nothing are added beyond Rate.
	Unshared float64
	// Duration is the time in which requests arrive; 0 means 35 minutes, 5 of them warm-up.
	Duration time.Duration
	// Seed makes the draws. Prompts of different seeds share nothing.
	Seed uint64
}

// shape is one row of the table of workloads.
type shape struct {
	turns     int
	think     time.Duration // mean of the exponential pause between turns
	prefixes  int           // shared prefixes to draw from, 0 for none
	prefixLen int
	zipf      bool                 // prefixes drawn by Zipf's law with exponent 1, else evenly
	first     func(*rand.Rand) int // new tokens of the first turn; nil means as fresh. Agents: 8,000 with the prefix
	fresh     func(*rand.Rand) int // new tokens of each turn
	output    func(*rand.Rand) int
}

var shapes = map[string]shape{
	"chat": {turns: 6, think: 30 * time.Second, prefixes: 1, prefixLen: 500, fresh: exactly(1200),
		output: exactly(80)},
	"cross-session": {turns: 3, think: 30 * time.Second, prefixes: 32, prefixLen: 4000, zipf: true,
		fresh: exactly(400), output: exactly(80)},
	"prefill-heavy": {turns: 4, think: 30 * time.Second, prefixes: 2, prefixLen: 3000, fresh: about(2000, 600),
		output: exactly(32)},
	"decode-heavy": {turns: 1, prefixes: 2, prefixLen: 3000, fresh: exactly(300), output: about(250, 150)},
	"reasoning":    {turns: 1, fresh: exactly(500), output: lognormal(4000, 0.8, maxReasoning)},
	"agents": {turns: 20, think: 5 * time.Second, prefixes: 5, prefixLen: 6000, first: exactly(2000),
		fresh: exactly(800), output: exactly(150)},
	"coding-agents": {turns: 30, think: 3 * time.Second, prefixes: 4, prefixLen: 14000, first: exactly(8000),
		fresh: exactly(1800), output: exactly(200)},
	"hot-prefix":     {turns: 1, prefixes: 1, prefixLen: 2560, fresh: exactly(512), output: exactly(120)},
	"nothing-shared": {turns: 1, fresh: exactly(2000), output: exactly(200)},
	// llm-d's capacity benchmark: 150 customers, each question of which is new.
	"b2b": {turns: 1, prefixes: 150, prefixLen: 6000, fresh: exactly(1200), output: exactly(1000)},
	// Like Mooncake's synthetic trace: short chats between long documents that are soon asked again.
	"documents": {turns: 4, think: 3 * time.Second,
		first: either(0.4, lognormal(200, 1, 3000), lognormal(24000, 0.75, 100_000)),
		fresh: exactly(60), output: lognormal(150, 1, 800)},
}

// Names are the workloads of Generate, sorted.
func Names() []string { return slices.Sorted(maps.Keys(shapes)) }

// Generate makes a workload, sorted by arrival.
//
// Sessions arrive as a Poisson process. Where the table has turns, each turn's prompt is the whole
// conversation so far, answers included, and new tokens; it arrives after the one before, 25 ms for each
// token of its answer and an exponential think time. Only what arrives within Duration is returned.
func Generate(s Spec) ([]Request, error) {
	sh, ok := shapes[s.Name]
	switch {
	case !ok:
		return nil, fmt.Errorf("workload %q is not one of %s", s.Name, strings.Join(Names(), ", "))
	case !(s.Rate > 0) || math.IsInf(s.Rate, 0):
		return nil, fmt.Errorf("workload %s: rate %v is not positive", s.Name, s.Rate)
	case s.Duration < 0:
		return nil, fmt.Errorf("workload %s: duration %v is negative", s.Name, s.Duration)
	case !(s.Unshared >= 0 && s.Unshared < 1):
		return nil, fmt.Errorf("workload %s: unshared %v is not in [0, 1)", s.Name, s.Unshared)
	}
	if s.Duration == 0 {
		s.Duration = 35 * time.Minute
	}
	name := s.Name + "-" + strconv.FormatUint(s.Seed, 10) + "-"
	rng := rand.New(rand.NewPCG(s.Seed, xxh3.HashString(s.Name)))
	pick := prefixPicker(sh)
	gap := float64(time.Second) * float64(sh.turns) / s.Rate
	var rs []Request
	for k, start := 0, 0.0; ; k++ {
		start += rng.ExpFloat64() * gap
		if start >= float64(s.Duration) {
			break
		}
		rs = sh.session(rs, name+strconv.Itoa(k), name, time.Duration(start), s.Duration, pick(rng), rng)
	}
	Sort(rs)
	if s.Unshared > 0 {
		rs = withOneOffs(rs, s.Unshared, name, s.Duration, s.Seed)
	}
	return rs, nil
}

// session appends the turns of one conversation that arrive before end.
func (sh *shape) session(rs []Request, id, name string, at, end time.Duration, prefix int, rng *rand.Rand) []Request {
	segs := make([]Segment, 0, 2*sh.turns+1)
	total := 0
	add := func(seed uint64, n int) {
		segs = append(segs, Segment{Seed: seed, Len: int32(n)})
		total += n
	}
	if prefix >= 0 {
		add(sharedSeed(name, prefix), sh.prefixLen)
	}
	for turn := range sh.turns {
		r := Request{ID: id, At: at, Turn: turn, Prefix: prefix}
		if sh.turns > 1 {
			r.ID, r.Session = id+"."+strconv.Itoa(turn), id
		}
		size := sh.fresh
		if turn == 0 && sh.first != nil {
			size = sh.first
		}
		add(freshSeed(r.ID), size(rng))
		r.Segments, r.PromptTokens, r.OutputTokens = segs[:len(segs):len(segs)], total, sh.output(rng)
		add(OutputSeed(r.ID), r.OutputTokens)
		pause := time.Duration(rng.ExpFloat64() * float64(sh.think))
		if at < end {
			rs = append(rs, r)
		}
		at += time.Duration(r.OutputTokens)*nominalToken + pause
	}
	return rs
}

func freshSeed(id string) uint64 { return mix(xxh3.HashString(id) + domainFresh) }

func sharedSeed(name string, k int) uint64 {
	return mix(mix(xxh3.HashString(name)+domainShared) + uint64(k)*golden)
}

// prefixPicker draws the number of a shared prefix.
func prefixPicker(sh shape) func(*rand.Rand) int {
	switch {
	case sh.prefixes == 0:
		return func(*rand.Rand) int { return -1 }
	case !sh.zipf:
		return func(rng *rand.Rand) int { return rng.IntN(sh.prefixes) }
	}
	cdf := make([]float64, sh.prefixes)
	sum := 0.0
	for i := range cdf {
		sum += 1 / float64(i+1)
		cdf[i] = sum
	}
	return func(rng *rand.Rand) int {
		return min(sort.SearchFloat64s(cdf, rng.Float64()*sum), sh.prefixes-1)
	}
}

func exactly(n int) func(*rand.Rand) int { return func(*rand.Rand) int { return n } }

// about draws from the normal distribution, cut off evenly on both sides so that the mean stays and nothing
// falls below 1.
func about(mean, sigma float64) func(*rand.Rand) int {
	most := min(3*sigma, mean-1)
	return func(rng *rand.Rand) int {
		for {
			if d := rng.NormFloat64() * sigma; math.Abs(d) <= most {
				return int(math.Round(mean + d))
			}
		}
	}
}

// either draws from a with this probability, else from b.
func either(share float64, a, b func(*rand.Rand) int) func(*rand.Rand) int {
	return func(rng *rand.Rand) int {
		if rng.Float64() < share {
			return a(rng)
		}
		return b(rng)
	}
}

// lognormal draws with the given mean and sigma of the logarithm, at least 1 and at most most.
func lognormal(mean, sigma float64, most int) func(*rand.Rand) int {
	mu := math.Log(mean) - sigma*sigma/2
	return func(rng *rand.Rand) int {
		return min(max(int(math.Round(math.Exp(mu+sigma*rng.NormFloat64()))), 1), most)
	}
}
