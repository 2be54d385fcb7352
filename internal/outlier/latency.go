package outlier

import (
	"math"
	"time"
)

// A Pace is what a replica's first messages took: log(time) over log(work), as means and (co)variances that forget
// exponentially.
type Pace struct {
	N          float64 // samples that count
	X, Y       float64 // means of log(work) and log(time)
	XX, XY, YY float64 // (co)variances
}

// memory is the number of samples after which an old one counts 1/e.
const memory = 256

// Add takes one sample into account.
func (p *Pace) Add(x, y float64) {
	p.N = min(p.N+1, memory)
	a := 1 / p.N
	dx, dy := x-p.X, y-p.Y
	p.X += a * dx
	p.Y += a * dy
	p.XX = (1 - a) * (p.XX + a*dx*dx)
	p.XY = (1 - a) * (p.XY + a*dx*dy)
	p.YY = (1 - a) * (p.YY + a*dy*dy)
}

// A limit is how long the first message of a replica may take. It rests on what the others take: a replica is
// never its own measure. The zero limit is never passed.
type limit struct {
	known bool
	beta  float64 // time grows as work^beta
	usual float64 // log of the fleet's time for work 1
	late  float64 // … and of the time that is late
	least time.Duration
}

const (
	lateFactor   = 10 // a message is late after so many times what is usual, as a rule
	limitSamples = 16 // of the others, below which nothing is known
	limitSpread  = 4  // standard deviations beyond which hardly any first message of the fleet's is
	slowFactor   = 3  // a deadline that has passed counts from so many times what is usual

	quickMessage = 10 * time.Millisecond // what a first message takes at least: below, differences are noise
)

// at is the time in seconds for so much work, from the log of that for work 1.
func (l *limit) at(log, work float64) float64 { return math.Exp(log + l.beta*math.Log(work)) }

// times is how many times the limit for the work fits into the wait.
func (l *limit) times(work float64, wait time.Duration) int {
	if !l.known || wait < l.least {
		return 0
	}
	return int(wait.Seconds() / max(l.at(l.late, work), l.least.Seconds(), 1e-9))
}

func (l *limit) passed(work float64, wait time.Duration) bool { return l.times(work, wait) > 0 }

// slow reports whether the wait is well beyond what is usual.
func (l *limit) slow(work float64, wait time.Duration) bool {
	return l.known && wait.Seconds() >= slowFactor*l.at(l.usual, work)
}

// measure sets every member's limits anew. How time grows with work is taken from within the replicas. O(replicas).
func measure(members []*Replica, lateMin time.Duration) {
	for kind := range kinds {
		var n, ww, wt, tt, lag float64
		for _, r := range members {
			p := &r.paces[kind]
			n, ww, wt, tt = n+p.N, ww+p.N*p.XX, wt+p.N*p.XY, tt+p.N*p.YY
		}
		if n < limitSamples {
			continue
		}
		var beta float64
		if ww > 0 {
			beta = min(max(wt/ww, 0), 1)
		}
		lagOf := func(r *Replica) float64 { // what its messages took beyond work^beta, in sum
			p := &r.paces[kind]
			return p.N * (p.Y - beta*p.X + math.Log(r.host.Rate()))
		}
		for _, r := range members {
			lag += lagOf(r)
		}
		spread := math.Sqrt(max(tt-2*beta*wt+beta*beta*ww, 0) / n)
		far := max(math.Log(lateFactor), limitSpread*spread)
		for _, r := range members {
			others := n - r.paces[kind].N
			if others < limitSamples {
				continue // what was known stays
			}
			usual := (lag-lagOf(r))/others - math.Log(r.host.Rate())
			r.limits[kind] = limit{known: true, beta: beta, usual: usual, late: usual + far, least: lateMin}
		}
	}
}
