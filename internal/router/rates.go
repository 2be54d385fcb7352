package router

import (
	"cmp"
	"math"
	"slices"
	"sync"

	"github.com/warmpath/warmpath/balancer/policy"
)

// How rates are learned. The figures are from the simulator: with fewer samples, or less
// caution, clients that see a twelfth of the requests take queues they cannot see for
// slow engines.
const (
	paceMemory    = 256  // samples after which an old one counts 1/e
	paceSamples   = 16   // below, a replica is not judged
	paceOverhead  = 500  // tokens added to every request's work: passes have a fixed cost
	rateTolerance = 0.15 // replicas whose speeds differ by less are alike
	rateCaution   = 6    // … and by less than so many standard errors of one replica
	rateKeep      = 0.7  // of both once they are distinct
	rateStep      = 0.05 // a learned rate moves by no less
	maxRate       = 8    // a learned rate is within 1/maxRate and maxRate of the weight
)

// rates learns how fast replicas are, relative to each other and to their weights, from
// how long the first message of a call took against the work that stood before it: its
// own uncached tokens and those queued at the pick.
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
type rates struct {
	// mu guards the paces of all replicas and the fields below. The Router's mutex is
	// taken under it.
	mu      sync.Mutex
	samples int // since the groups were made
	apart   bool
}

// A pace is what one replica showed: weighted means and (co)variances of w = log(work) and
// t = log(time). Guarded by rates.mu; those of a replica's health by the Router's mutex.
type pace struct {
	n           float64
	w, t        float64
	ww, wt, tt  float64
	lag, spread float64 // made of the above by rates.groups: log(time) beyond the work's, and its variance
}

func (p *pace) add(w, t float64) {
	p.n = min(p.n+1, paceMemory)
	a := 1 / p.n
	dw, dt := w-p.w, t-p.t
	p.w += a * dw
	p.t += a * dt
	p.ww = (1 - a) * (p.ww + a*dw*dw)
	p.wt = (1 - a) * (p.wt + a*dw*dt)
	p.tt = (1 - a) * (p.tt + a*dt*dt)
}

// learn takes one call into account, if it had a first message.
func (r *Router) learn(q *policy.Request, d *policy.Decision, o *policy.Outcome) {
	if o.Err != nil || o.FirstMessage <= 0 || q.PromptTokens <= 0 {
		return
	}
	work := uncached(q, d, &o.Usage) + float64(q.State().Ahead) + paceOverhead
	s := &r.rates
	s.mu.Lock()
	defer s.mu.Unlock()
	liveOf(d.Replica).pace.add(math.Log(work), math.Log(o.FirstMessage.Seconds()))
	s.samples++
	if all := r.view.Load().Replicas(); s.samples >= max(64, 4*len(all)) {
		s.samples = 0
		r.setRates(s.groups(all))
	}
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
type group []*policy.Replica

// groups divides the replicas that are known well enough. It returns nil where none
// stands out. Called with mu held.
func (s *rates) groups(all []*policy.Replica) []group {
	var known group
	var ww, wt float64
	for _, rep := range all {
		if p := &liveOf(rep).pace; p.n >= paceSamples {
			known = append(known, rep)
			ww += p.n * p.ww
			wt += p.n * p.wt
		}
	}
	var beta float64
	if ww > 0 {
		beta = min(max(wt/ww, 0), 1)
	}
	for _, rep := range known {
		p := &liveOf(rep).pace
		p.lag = p.t - beta*p.w + math.Log(weightOf(rep))
		p.spread = max(p.tt-2*beta*p.wt+beta*beta*p.ww, 0) / p.n
	}
	slices.SortFunc(known, func(a, b *policy.Replica) int {
		return cmp.Or(cmp.Compare(liveOf(a).pace.lag, liveOf(b).pace.lag), cmp.Compare(a.Index(), b.Index()))
	})
	care := 1.0
	if s.apart {
		care = rateKeep
	}
	found := known.split(nil, care)
	s.apart = len(found) > 1
	if !s.apart {
		return nil
	}
	return found
}

// split cuts the group in two where that explains most, if they differ for sure, and goes
// on with the parts.
func (g group) split(found []group, care float64) []group {
	at, gap := g.cut()
	if at == 0 {
		return append(found, g)
	}
	var spread float64
	for _, rep := range g {
		spread += liveOf(rep).pace.spread
	}
	sure := rateCaution * math.Sqrt(spread/float64(len(g)))
	if gap < care*max(math.Log1p(rateTolerance), sure) {
		return append(found, g)
	}
	return g[at:].split(g[:at].split(found, care), care)
}

// cut returns the place that separates the lags best, 0 if there is none, and by how much
// the means of the two parts differ.
func (g group) cut() (at int, gap float64) {
	var n, sum float64
	for _, rep := range g {
		n += liveOf(rep).pace.n
		sum += liveOf(rep).pace.n * liveOf(rep).pace.lag
	}
	var low, lowSum, best float64
	for i, rep := range g {
		if i > 0 {
			d := (sum-lowSum)/(n-low) - lowSum/low
			if explained := low * (n - low) * d * d; explained > best {
				at, gap, best = i, d, explained
			}
		}
		low += liveOf(rep).pace.n
		lowSum += liveOf(rep).pace.n * liveOf(rep).pace.lag
	}
	return at, gap
}

// lag is the group's mean.
func (g group) lag() float64 {
	var n, sum float64
	for _, rep := range g {
		n += liveOf(rep).pace.n
		sum += liveOf(rep).pace.n * liveOf(rep).pace.lag
	}
	return sum / n
}

// setRates puts the groups' rates into force, where one of them moves by rateStep: all at
// once, so that equals stay equal. The mean over the weights stays 1, so that load stays
// in tokens.
func (r *Router) setRates(groups []group) {
	var weights, shares float64
	factors := make(map[*live]float64)
	for _, g := range groups {
		factor := math.Exp(-g.lag())
		for _, rep := range g {
			factors[liveOf(rep)] = factor
			weights += weightOf(rep)
			shares += weightOf(rep) * factor
		}
	}
	for l, f := range factors {
		factors[l] = min(max(f*weights/shares, 1./maxRate), maxRate)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.view.Load().Replicas()
	moved := false
	for _, rep := range all {
		was, now := liveOf(rep).factor, cmp.Or(factors[liveOf(rep)], 1)
		moved = moved || was != now && (len(groups) == 0 || math.Abs(math.Log(now/was)) > rateStep)
	}
	if !moved {
		return
	}
	for _, rep := range all {
		liveOf(rep).factor = cmp.Or(factors[liveOf(rep)], 1)
		liveOf(rep).setRate(rep.Weight)
	}
}

func weightOf(rep *policy.Replica) float64 {
	if rep.Weight > 0 {
		return rep.Weight
	}
	return 1
}
