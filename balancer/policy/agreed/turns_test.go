package agreed_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/warmpath/warmpath/balancer/policy/agreed"
	"github.com/warmpath/warmpath/balancer/policy/roundrobin"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/balancer/routing"
)

func anyPolicy(t *testing.T) routing.Policy {
	t.Helper()
	p, err := roundrobin.New(roundrobin.Config{})
	require.NoError(t, err)
	return p
}

// taken returns who takes each of the next turns.
func taken(t *testing.T, r *routing.Router, turns *agreed.Turns, n int) (ids []string) {
	t.Helper()
	v := r.View()
	pool, ok := v.Pool(new(routing.Request), 0)
	require.True(t, ok)
	for range n {
		ids = append(ids, turns.Take(pool, v).ID)
	}
	return ids
}

func TestTurns(t *testing.T) {
	for _, tt := range []struct {
		name string
		fill map[string]int
		want []string
	}{
		{"idle", nil, []string{"r0", "r1", "r2", "r3", "r0"}},
		{"few calls tell nothing", map[string]int{"r2": 2}, []string{"r0", "r1", "r2", "r3", "r0"}},
		{"but where one is slow", map[string]int{"r2": 3}, []string{"r0", "r1", "r3", "r3", "r0"}},
		{"many tell", map[string]int{"r0": 5, "r1": 5, "r2": 6, "r3": 5}, []string{"r0", "r1", "r3", "r3", "r0"}},
		{"nearly as many do not", map[string]int{"r0": 4, "r1": 5, "r2": 6, "r3": 4}, []string{"r0", "r1", "r2", "r3", "r0"}},
		{"of the next two, not of all", map[string]int{"r0": 9, "r1": 8, "r2": 7, "r3": 0}, []string{"r1", "r2", "r3", "r3", "r1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := policytest.NewRouter(t, anyPolicy(t), policytest.Fleet(4))
			for id, n := range tt.fill {
				policytest.Fill(t, r, id, n)
			}
			assert.Equal(t, tt.want, taken(t, r, new(agreed.Turns), 5))
		})
	}
}

// Who is not available has no turn.
func TestTurnsOfTheAvailable(t *testing.T) {
	r := policytest.NewRouter(t, anyPolicy(t), policytest.Bounded(policytest.Fleet(3), 2))
	var turns agreed.Turns
	release := policytest.Fill(t, r, "r1", 2)
	assert.Equal(t, []string{"r0", "r2", "r0"}, taken(t, r, &turns, 3))
	release(1)
	assert.Equal(t, []string{"r1", "r2"}, taken(t, r, &turns, 2))
	policytest.Fill(t, r, "r0", 2)
	policytest.Fill(t, r, "r1", 1)
	policytest.Fill(t, r, "r2", 2)
	v := r.View()
	pool, ok := v.Pool(new(routing.Request), 0)
	require.True(t, ok)
	assert.Nil(t, turns.Take(pool, v))
}
