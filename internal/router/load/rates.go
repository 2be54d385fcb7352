package load

import (
	"cmp"
	"math"
	"slices"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/part"
)

// How rates are learned. The figures are from the simulator: with fewer samples, or less
// caution, clients that see a twelfth of the requests take queues they cannot see for
// slow engines.
const (
	// Overhead is the tokens added to every request's work: passes have a fixed cost.
	Overhead = 500

	paceSamples   = 16   // below, a replica is not judged
	rateTolerance = 0.15 // replicas whose speeds differ by less are alike
	rateCaution   = 6    // … and by less than so many standard errors of one replica
	rateKeep      = 0.7  // of both once they are distinct
	rateStep      = 0.05 // a learned rate moves by no less
	maxRate       = 8    // a learned rate is within 1/maxRate and maxRate of the weight
)

// Learn takes one call into account, if it had a first message. It learns how fast replicas are, relative to each other
// and to their weights, from how long the first message took against the work that stood before it: the call's own
// uncached tokens and those queued at the pick.
//
// One replica gives one mean of log(time) and of log(work), with their covariances, that
// forget exponentially. How time grows with work, as work^β, is taken from within the
// replicas, so that a replica that is given more work is not thought slow for it. What is
// left of the time is the replica's pace. Replicas whose paces differ for sure, and by
// more than rateTolerance, fall into groups, and a group has one rate: equal engines have
// exactly equal rates, so that near ties among them stay ties, and many clients that know
// little each still agree. Where all are alike every rate is the weight.
//
// O(1) per call, and O(replicas · log replicas) per 4 · replicas calls.
func (t *Tracker) Learn(q *policy.Request, d *policy.Decision, o *policy.Outcome) {
	if o.Err != nil || o.FirstMessage <= 0 || q.PromptTokens <= 0 {
		return
	}
	own := uncached(q, d, &o.Usage)
	work, lag := math.Log(own+float64(part.OfRequest(q).Ahead)+Overhead), math.Log(o.FirstMessage.Seconds())
	t.mu.Lock()
	defer t.mu.Unlock()
	t.prompt.add(own)
	r := t.byID[d.Replica.ID]
	if r == nil {
		return
	}
	r.pace.Add(work, lag)
	if t.samples++; t.samples >= max(64, 4*len(t.fleet)) {
		t.samples = 0
		t.setRates(t.groups())
	}
}

// A mean is that of the last values, about keptValues of them.
type mean struct{ of, values float64 }

const keptValues = 100

func (m *mean) add(value float64) {
	m.values = min(m.values+1, keptValues)
	m.of += (value - m.of) / m.values
}

// uncached is how much of the prompt the replica had to compute, in the tokens of the
// request: the replica may count others.
func uncached(q *policy.Request, d *policy.Decision, u *policy.Usage) float64 {
	prompt := float64(q.PromptTokens)
	switch {
	case u.CachedTokens < 0:
		return max(prompt-float64(d.MatchedTokens), 0)
	case u.PromptTokens > 0:
		return prompt * max(1-float64(u.CachedTokens)/float64(u.PromptTokens), 0)
	}
	return max(prompt-float64(u.CachedTokens), 0)
}

// group is a run of replicas, sorted by lag, that count as equally fast.
type group []*replica

// groups divides the replicas that are known well enough. It returns nil where none
// stands out. Called with mu held.
func (t *Tracker) groups() []group {
	var known group
	var all outlier.Pace
	for _, r := range t.fleet {
		if r.pace.N >= paceSamples {
			known = append(known, r)
			all.Pool(&r.pace, 1)
		}
	}
	beta := all.Slope()
	for _, r := range known {
		r.lag = r.pace.Y - beta*r.pace.X + math.Log(r.weight())
		r.spread = r.pace.Rest(beta) / r.pace.N
	}
	slices.SortStableFunc(known, func(a, b *replica) int { return cmp.Compare(a.lag, b.lag) })
	care := 1.0
	if t.apart {
		care = rateKeep
	}
	found := known.split(nil, care)
	if t.apart = len(found) > 1; !t.apart {
		return nil
	}
	return found
}

// split cuts the group in two where that explains most, if they differ for sure, and goes
// on with the parts.
func (g group) split(found []group, care float64) []group {
	at, gap := g.cut()
	var spread float64
	for _, r := range g {
		spread += r.spread
	}
	sure := rateCaution * math.Sqrt(spread/float64(len(g)))
	if at == 0 || gap < care*max(math.Log1p(rateTolerance), sure) {
		return append(found, g)
	}
	return g[at:].split(g[:at].split(found, care), care)
}

// cut returns the place that separates the lags best, 0 if there is none, and by how much
// the means of the two parts differ.
func (g group) cut() (at int, gap float64) {
	n, sum := g.sum()
	var low, lowSum, best float64
	for i, r := range g {
		if i > 0 {
			d := (sum-lowSum)/(n-low) - lowSum/low
			if explained := low * (n - low) * d * d; explained > best {
				at, gap, best = i, d, explained
			}
		}
		low += r.pace.N
		lowSum += r.pace.N * r.lag
	}
	return at, gap
}

// sum returns the samples of the group, and the sum of their lags.
func (g group) sum() (n, lag float64) {
	for _, r := range g {
		n += r.pace.N
		lag += r.pace.N * r.lag
	}
	return n, lag
}

// setRates puts the groups' rates into force, where one of them moves by rateStep: all at
// once, so that equals stay equal. The mean over the weights stays 1, so that load stays
// in tokens. Called with mu held.
func (t *Tracker) setRates(groups []group) {
	var weights, shares float64
	factors := make(map[*replica]float64, len(t.fleet)) // beside them: 1
	for _, g := range groups {
		n, lag := g.sum()
		for _, r := range g {
			factors[r] = math.Exp(-lag / n)
			weights += r.weight()
			shares += r.weight() * factors[r]
		}
	}
	moved := len(groups) == 0
	for r, f := range factors {
		factors[r] = min(max(f*weights/shares, 1./maxRate), maxRate)
		moved = moved || math.Abs(math.Log(factors[r]/r.factor)) > rateStep
	}
	for _, r := range t.fleet {
		if moved {
			r.setRate(cmp.Or(factors[r], 1))
		}
	}
}

// setRate sets what the load is divided by.
func (r *replica) setRate(factor float64) {
	r.factor = factor
	part.OfReplica(r.Replica).InvRate.Store(math.Float64bits(1 / (factor * r.weight())))
}

// weight is the replica's; one that is not positive counts as 1.
func (r *replica) weight() float64 {
	if r.Weight > 0 {
		return r.Weight
	}
	return 1
}
