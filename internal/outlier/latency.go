package outlier

import (
	"math"
	"time"

	"github.com/warmpath/warmpath/internal/regression"
)

// A pace is what a replica's first messages took: log(time) over log(work).
type pace = regression.Pair

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
	limitSamples = 16 // of the others, below which nothing is known
	limitSpread  = 4  // standard deviations beyond which hardly any first message of the fleet's is
	slowFactor   = 3  // a deadline that has passed counts from so many times what is usual
)

func (l *limit) at(log, work float64) time.Duration {
	seconds := math.Exp(log + l.beta*math.Log(work))
	if !(seconds < math.MaxInt64/1e10) {
		return math.MaxInt64
	}
	return max(time.Duration(seconds*float64(time.Second)), l.least)
}

// times is how many times the limit for the work fits into the wait.
func (l *limit) times(work float64, wait time.Duration) int {
	if !l.known || wait < l.least {
		return 0
	}
	return int(wait / max(l.at(l.late, work), 1))
}

func (l *limit) passed(work float64, wait time.Duration) bool { return l.times(work, wait) > 0 }

// slow reports whether the wait is well beyond what is usual.
func (l *limit) slow(work float64, wait time.Duration) bool {
	usual := *l
	usual.least = 0
	return l.known && wait >= slowFactor*usual.at(l.usual, work)
}

// quickMessage is what the first message takes at least, as far as limits go: below, differences are noise.
const quickMessage = 10 * time.Millisecond

var quickLog = math.Log(quickMessage.Seconds())

func logs(work float64, took time.Duration) (w, t float64) {
	if took <= quickMessage {
		return math.Log(work), quickLog
	}
	return math.Log(work), math.Log(took.Seconds())
}

// measure sets every member's limits anew. How time grows with work is taken from within the replicas. O(replicas).
func measure(members []*Replica, c *Config) {
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
		lagOf := func(r *Replica) float64 {
			p := &r.paces[kind]
			if p.N == 0 {
				return 0
			}
			return p.N * (p.Y - beta*p.X + math.Log(r.host.Rate()))
		}
		for _, r := range members {
			lag += lagOf(r)
		}
		spread := math.Sqrt(max(tt-2*beta*wt+beta*beta*ww, 0) / n)
		far := max(math.Log(c.LateFactor), limitSpread*spread)
		for _, r := range members {
			others := n - r.paces[kind].N
			if others < limitSamples {
				continue // what was known stays
			}
			usual := (lag-lagOf(r))/others - math.Log(r.host.Rate())
			r.limits[kind] = limit{known: true, beta: beta, usual: usual, late: usual + far, least: c.LateMin}
		}
	}
}
