package chaos

import (
	"fmt"
	"slices"
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

// sticky are the policies that keep sessions together.
var sticky = []string{ring, "prefix_cache_affinity", "kv_aware"}

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
