package chaos

import (
	"fmt"
	"slices"
	"time"

	"github.com/warmpath/warmpath/lab/enginesim"
)

// Result is what one run counted. Its JSON is part of the command's contract. Times are in seconds of the clock.
type Result struct {
	Scenario string `json:"scenario"`
	Policy   string `json:"policy"`
	Clients  int    `json:"clients"`
	Replicas int    `json:"replicas"`
	// Calls is how many were sent, Outcomes what became of them.
	Calls    int             `json:"calls"`
	Outcomes map[Outcome]int `json:"outcomes"`
	// Lost is how many failed although they could have been served, FailedAfter how many failed that began when
	// everything was well again.
	Lost        int `json:"lost"`
	FailedAfter int `json:"failed_after"`
	// Late is how many had their first message late, Retried how many needed more than one attempt, Misrouted how many
	// were served elsewhere although nothing had happened to their session's replica; -1 for policies that do not keep
	// sessions together.
	Late      int `json:"late"`
	Retried   int `json:"retried"`
	Misrouted int `json:"misrouted"`
	// Moved is the share of the sessions that each step moved, to replicas that had to compute their prompt; -1 likewise.
	Moved []float64 `json:"moved_per_step,omitempty"`
	// MeanMoved is its mean, MeanHeld the mean share of the sessions that the replica harmed in a step had before it.
	MeanMoved float64 `json:"mean_moved_per_step"`
	MeanHeld  float64 `json:"mean_held_per_step"`
	// CachedBefore and CachedAfter are the share of the prompt tokens that was in the cache, in the calm before and at
	// the end.
	CachedBefore float64 `json:"cached_token_ratio_before"`
	CachedAfter  float64 `json:"cached_token_ratio_after"`
	// LoadBack and CacheBack are how long after the last harm was over load was even again and the hit ratio back for
	// good, -1 if they were not.
	LoadBack  float64 `json:"load_back_s"`
	CacheBack float64 `json:"cache_back_s"`
	// Refilled is CacheBack without a clock: how many prompt tokens the replica that had to compute most had computed by
	// then, -1 likewise. KVTokens is how many its whole cache holds.
	Refilled int `json:"refilled_tokens"`
	KVTokens int `json:"kv_tokens"`
	// Leaked is the reservations and queue entries left when all calls had ended.
	Leaked int `json:"leaked_reservations"`
	// HeldBack is how many calls were not sent, since too many were under way or this machine was too busy:
	// the load was not open-loop then.
	HeldBack int `json:"held_back"`
	// Footprints are those of soak.
	Footprints []Footprint `json:"footprints,omitempty"`
	// Broken lists the promises that were not kept; empty if all were.
	Broken []string `json:"broken"`

	// Errors are the first errors of each outcome.
	Errors map[Outcome]error `json:"-"`
	// History is every call, in the order in which they ended.
	History []Call `json:"-"`
}

// movedAtMost is how many sessions a step may move for each that its replica had, with the policy that
// promises it in any case: those that look at caches and load move more where a cache is too small, or a
// replica that is back starts slowly.
const (
	movedAtMost = 1.1
	ring        = "consistent_hash"
)

// check fills in Broken.
func (r *Result) check(sc *Scenario) {
	r.Broken = []string{}
	broken := func(format string, args ...any) { r.Broken = append(r.Broken, fmt.Sprintf(format, args...)) }
	for _, o := range outcomes {
		if n := r.Outcomes[o]; n > 0 && o != Served && !slices.Contains(sc.may, o) {
			broken("%d calls %s, the first with: %v", n, o, r.Errors[o])
		}
	}
	if r.FailedAfter > 0 {
		broken("%d calls failed when everything was well again", r.FailedAfter)
	}
	if r.Leaked != 0 {
		broken("%d reservations were not released", r.Leaked)
	}
	if most := movedAtMost * r.MeanHeld; sc.moves && r.Policy == ring && r.MeanMoved > most {
		broken("%.1f %% of the sessions moved per step, more than %.1f %%", 100*r.MeanMoved, 100*most)
	}
}

var outcomes = []Outcome{Served, Cut, SentTwice, TimedOut, Refused, Lost}

// sticky are the policies that keep sessions together, also when replicas come and go.
var sticky = []string{ring, "kv_aware"}

// judge counts.
func (s *stage) judge(sc *Scenario) *Result {
	calls := s.load.history()
	r := &Result{
		Scenario: sc.Name, Policy: s.Policy, Clients: s.Clients, Replicas: s.Options.Replicas, Calls: len(calls),
		Outcomes: map[Outcome]int{}, Errors: map[Outcome]error{}, HeldBack: int(s.load.held.Load()),
		Misrouted: -1, MeanMoved: -1, MeanHeld: -1, KVTokens: s.KVTokens, Footprints: s.memory, History: calls,
	}
	for i := range calls {
		c := &calls[i]
		r.Outcomes[c.Outcome]++
		if c.Err != nil && r.Errors[c.Outcome] == nil {
			r.Errors[c.Outcome] = c.Err
		}
		if c.First > 0 && c.First-c.Start > s.Late {
			r.Late++
		}
		if c.Attempts > 1 {
			r.Retried++
		}
		if c.Err != nil && c.Start > s.over {
			r.FailedAfter++
		}
	}
	r.Lost = r.Outcomes[Lost]
	if slices.Contains(sticky, s.Policy) {
		r.Misrouted = s.misrouted(calls)
		r.Moved, r.MeanMoved, r.MeanHeld = s.moved(calls)
	}
	s.recovery(r, calls)
	return r
}

// backAt is the share of the calm's hit ratio at which it counts as back.
const backAt = 0.95

// hitRatio is the share of the prompt tokens of served calls that was cached.
func hitRatio(calls []Call) float64 {
	cached, prompt := 0, 0
	for i := range calls { // others have no tokens
		cached, prompt = cached+calls[i].Cached, prompt+calls[i].Prompt
	}
	return float64(cached) / float64(max(prompt, 1))
}

// busiest is the largest sum of a figure over the served calls of a replica, and the sum over all replicas.
func busiest(calls []Call, figure func(*Call) int) (most, total int) {
	by := map[string]int{}
	for i := range calls {
		if c := &calls[i]; c.Outcome == Served {
			by[c.Replica] += figure(c)
			total += figure(c)
			most = max(most, by[c.Replica])
		}
	}
	return most, total
}

// uneven is the busiest replica's calls over the mean of so many replicas.
func uneven(calls []Call, replicas int) float64 {
	most, total := busiest(calls, func(*Call) int { return 1 })
	return float64(most*replicas) / float64(max(total, 1))
}

// recovery finds out when load and hit ratio were back. A window is half a round.
func (s *stage) recovery(r *Result, calls []Call) {
	size := max(s.Sessions/2, 1)
	windows := func(calls []Call) [][]Call { // what is left over is dropped
		return slices.Collect(slices.Chunk(calls[:len(calls)/size*size], size))
	}
	var before, after []Call
	for _, c := range byStart(calls) {
		switch {
		case c.Start >= s.calm && c.Start < s.harm:
			before = append(before, c)
		case c.Start >= s.back:
			after = append(after, c)
		}
	}
	later := windows(after)
	if len(before) == 0 || len(later) == 0 {
		return
	}
	r.CachedBefore, r.CachedAfter = hitRatio(before), hitRatio(later[len(later)-1])
	worst := 0.0
	for _, w := range windows(before) {
		worst = max(worst, uneven(w, r.Replicas))
	}
	at := func(i int) float64 { return (later[i][0].Start - s.back).Seconds() }
	r.LoadBack, r.CacheBack, r.Refilled = -1, -1, -1
	if i := slices.IndexFunc(later, func(w []Call) bool { return uneven(w, r.Replicas) <= worst }); i >= 0 {
		r.LoadBack = at(i)
	}
	// The ratio may fall once the sessions return: it is back when it stays so.
	for i := len(later) - 1; i >= 0 && hitRatio(later[i]) >= backAt*r.CachedBefore; i-- {
		r.CacheBack = at(i)
		r.Refilled, _ = busiest(after[:i*size], func(c *Call) int { return c.Prompt - c.Cached })
	}
}

// tokenTime is how long a token takes on an engine that does nothing else, in its own time.
func (s *stage) tokenTime() time.Duration {
	p, _ := enginesim.FindPreset(s.Preset) // no engine starts with a wrong one
	return p.Pass(enginesim.Work{Decodes: 1})
}
