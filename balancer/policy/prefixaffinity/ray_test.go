package prefixaffinity

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

func newPolicy(t testing.TB, c Config) *affinity {
	t.Helper()
	p, err := build(c)
	require.NoError(t, err)
	return p
}

func text(s string) *policy.Request {
	q := new(policy.Request)
	q.SetPrompt(policy.Prompt{Text: s})
	return q
}

func TestConform(t *testing.T) {
	for name, c := range map[string]Config{"default": {}, "imbalanced": {ImbalancedThreshold: 0.5}} {
		t.Run(name, func(t *testing.T) {
			policytest.Conform(t, func() policy.Policy { return newPolicy(t, c).policy() })
		})
	}
}

// A model of Ray's published rule: every prefix that was sent, and by replica when it was used last.
type model struct {
	config Config
	used   map[string]map[string]int
	count  map[string]int // of prefixes, by replica: each adds a character
	time   int
}

func (m *model) chars(id string) int { return m.count[id] }

func (m *model) depth(id string, prompt []rune) (n int) {
	for n < len(prompt) {
		if _, ok := m.used[string(prompt[:n+1])][id]; !ok {
			break
		}
		n++
	}
	return n
}

func (m *model) insert(id string, prompt []rune) {
	m.time++
	for n := range prompt {
		by := m.used[string(prompt[:n+1])]
		if by == nil {
			by = make(map[string]int)
			m.used[string(prompt[:n+1])] = by
		}
		if _, ok := by[id]; !ok {
			m.count[id]++
		}
		by[id] = m.time
	}
	if all := m.chars(id); all > m.config.EvictionThresholdChars {
		for gone := 0; gone < all-m.config.EvictionTargetChars; {
			oldest := m.time + 1
			for _, by := range m.used {
				if at, ok := by[id]; ok {
					oldest = min(oldest, at)
				}
			}
			for _, by := range m.used {
				if by[id] == oldest {
					delete(by, id)
					m.count[id]--
					gone++
				}
			}
		}
	}
}

// preferred is the replicas of Ray's one rank; none = power of two choices.
func (m *model) preferred(r *router.Router, prompt []rune) (ids []string) {
	reps := r.View().Replicas()
	least, most, longest, smallest := 1<<60, 0, 0, 1<<60
	for _, rep := range reps {
		least, most = min(least, rep.Ongoing()), max(most, rep.Ongoing())
		longest, smallest = max(longest, m.depth(rep.ID, prompt)), min(smallest, m.chars(rep.ID))
	}
	if t := m.config.ImbalancedThreshold; t > 0 && policy.Limit(most-least) > t {
		return nil
	}
	matches := policy.Limit(longest)/policy.Limit(len(prompt)) >= max(m.config.MatchRateThreshold, 0)
	for _, rep := range reps {
		if matches && m.depth(rep.ID, prompt) == longest || !matches && m.chars(rep.ID) == smallest {
			ids = append(ids, rep.ID)
		}
	}
	return ids
}

// The policy decides as Ray's rule does: thresholds, imbalance, smallest, ties, eviction, full replicas.
func TestAgreesWithRay(t *testing.T) {
	for seed := range uint64(60) {
		rnd := routertest.Seeded(seed)
		c := Config{
			MatchRateThreshold:     []policy.Limit{0, 0.07, 0.5, 1, policy.Off}[rnd.IntN(5)],
			ImbalancedThreshold:    []policy.Limit{0, 0, 0.5, 2.5}[rnd.IntN(4)],
			EvictionThresholdChars: []int{0, 60, 200}[rnd.IntN(3)],
		}.WithDefaults()
		p := newPolicy(t, c)
		r := policytest.NewRouter(t, p.policy(), policytest.Bounded(policytest.Fleet(2+rnd.IntN(4)), 3))
		m := model{config: c, used: make(map[string]map[string]int), count: make(map[string]int)}
		var open []*router.Reservation
		for i := range 300 {
			var prompt []rune
			for range 1 + rnd.IntN(25) {
				prompt = append(prompt, []rune("aaaéz")[rnd.IntN(5)])
			}
			want := m.preferred(r, prompt)
			q, b := text(string(prompt)), new(router.Reservation)
			err := r.Reserve(t.Context(), q, b, router.How{NoWait: true})
			at := fmt.Sprintf("seed %d, request %d %q: %v %+v", seed, i, string(prompt), want, b.Decision)
			var room []string // of the preferred, with the fewest requests before this one
			fewest := 3
			for _, id := range want {
				n := r.View().ByID(id).Ongoing()
				if err == nil && b.Decision.Replica.ID == id {
					n--
				}
				if n < fewest {
					fewest, room = n, nil
				}
				if n == fewest && n < 3 {
					room = append(room, id)
				}
			}
			switch {
			case err != nil && want != nil:
				require.Empty(t, room, at)
				var waits []string
				for _, rep := range b.Decision.WaitFor {
					waits = append(waits, rep.ID)
				}
				require.ElementsMatch(t, want, waits, at)
			case err == nil && want == nil:
				require.Equal(t, policy.ReasonLeastOfTwo, b.Decision.Reason, at)
			case err == nil:
				require.NotEmpty(t, room, at)
				require.Equal(t, room[0], b.Decision.Replica.ID, at)
			}
			if err == nil {
				m.insert(b.Decision.Replica.ID, prompt)
				open = append(open, b)
			}
			for _, rep := range r.View().Replicas() {
				require.EqualValues(t, m.chars(rep.ID), p.tenants[rep.ID].chars.Load(), at)
			}
			if len(open) > 0 && rnd.IntN(5) < 3 {
				k := rnd.IntN(len(open))
				open[k].Release()
				open = append(open[:k], open[k+1:]...)
			}
		}
	}
}
