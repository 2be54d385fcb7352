package sim

import (
	"math"
	"time"

	"github.com/warmpath/warmpath/internal/lab/drive"
	"github.com/warmpath/warmpath/internal/lab/enginesim"
)

// observed is the sum, over the measured decisions, of what the true state of the engines was at each.
type observed struct {
	decisions                int
	requestsCV, kvCV, regret float64
}

// observe looks at the engines before the one that was picked gets a request.
func (r *run) observe(picked *machine, work *enginesim.Request) {
	var requests, kv variation
	best, chosen := never, time.Duration(0)
	for _, m := range r.machines {
		load, ttft := m.engine.Load(), m.engine.Estimate(r.now, work)
		requests.add(load.Running + load.Waiting)
		kv.add(load.UsedTokens)
		best = min(best, ttft)
		if m == picked {
			chosen = ttft
		}
	}
	r.seen.decisions++
	r.seen.requestsCV += requests.coefficient()
	r.seen.kvCV += kv.coefficient()
	r.seen.regret += float64(chosen-best) / float64(time.Millisecond)
}

// balance is the means.
func (o *observed) balance() drive.Balance {
	n := float64(max(o.decisions, 1))
	return drive.Balance{RequestsCV: o.requestsCV / n, KVCV: o.kvCV / n, RegretMS: o.regret / n}
}

// followUpsHome is the share of the measured requests of a session, but for its first, that went where the first did.
func (r *run) followUpsHome() float64 {
	home := map[string]string{}
	later, there := 0, 0
	for i := range r.samples {
		s, session := &r.samples[i], r.rs[i].Session
		if session == "" || s.Replica == "" {
			continue
		}
		first, known := home[session]
		if !known {
			home[session] = s.Replica
		} else if !s.WarmUp {
			later++
			if s.Replica == first {
				there++
			}
		}
	}
	return float64(there) / float64(max(later, 1))
}

// variation is what a coefficient of variation is made of.
type variation struct{ n, sum, squares float64 }

func (v *variation) add(x int) {
	v.n++
	v.sum += float64(x)
	v.squares += float64(x) * float64(x)
}

// coefficient is the standard deviation over the mean; 0 where all are 0.
func (v *variation) coefficient() float64 {
	if v.sum == 0 {
		return 0
	}
	return math.Sqrt(max(v.n*v.squares-v.sum*v.sum, 0)) / v.sum
}
