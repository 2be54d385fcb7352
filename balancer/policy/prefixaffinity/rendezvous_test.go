package prefixaffinity

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

func TestScaleMovesOneInN(t *testing.T) {
	small, large := newRouter(t, 16), newRouter(t, 17)
	const keys = 4000
	moved := 0
	for i := range keys {
		q, again := askText("prompt number %d, rather short", i), askText("prompt number %d, rather short", i)
		from, to := policytest.Route(t, small, q), policytest.Route(t, large, again)
		if from != to {
			moved++
			require.Equal(t, "r16", to, "only the newcomer may take over")
		}
	}
	assert.InDelta(t, keys/17., moved, keys/17.*.35)
}

func TestKeysSpread(t *testing.T) {
	r := newRouter(t, 16)
	count := map[string]int{}
	for i := range 3200 {
		count[policytest.Route(t, r, askText("a question of its own: %d", i))]++
	}
	for _, rep := range r.View().Replicas() {
		assert.InDelta(t, 200, count[rep.ID], 70, fmt.Sprint(rep.ID))
	}
}

// Of eight replicas a share is 12.5 %. A prefix in 10 % of the requests is spread over the first two of its order,
// and a conversation stays with one of them, also from another client.
func TestHeavyPrefixHasTwoReplicas(t *testing.T) {
	var clients []*router.Router
	for range 2 {
		r := newRouter(t, 8)
		for i := range 2000 {
			q := ask(tokens(i, 700))
			if i%10 == 0 {
				q = ask(tokens(1_000_000, 640), tokens(i, 60))
			}
			route(t, r, q)
		}
		clients = append(clients, r)
	}
	at := make(map[string]int)
	for i := range 40 {
		first := ask(tokens(1_000_000, 640), tokens(10_000+i, 60))
		home := routertest.Choose(t, clients[0], first)
		next := routertest.Choose(t, clients[1], ask(tokens(1_000_000, 640), tokens(10_000+i, 160)))
		assert.Equal(t, home.Replica.ID, next.Replica.ID)
		assert.Zero(t, home.Place)
		at[home.Replica.ID]++
		places := order(keyOf(t, ask(tokens(1_000_000, 640))), clients[0].View().Replicas())
		assert.Contains(t, places[:2], home.Replica.ID)
	}
	assert.Len(t, at, 2)
	for id, n := range at {
		assert.InDelta(t, 20, n, 10, id)
	}
}
