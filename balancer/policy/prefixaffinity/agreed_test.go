package prefixaffinity

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/warmpath/warmpath/balancer/policytest"
)

// The contract with other languages: change it and clients no longer agree. The
// vectors are the xxHash library's own, libxxhash 0.8.1.
func TestScoreVectors(t *testing.T) {
	for _, tt := range []struct {
		key  uint64
		id   string
		want uint64
	}{
		{0, "r0", 12024003136825458794},
		{1, "a", 5612338825974642116},
		{1, "b", 3072424600147689761},
		{18446744073709551615, "replica-7", 12461186674937057780},
		{14643705804678351452, "10.0.0.1:50051", 18355682680872376665},
		{1337, "vllm-0.vllm.default.svc.cluster.local:50051", 13269095794153616739},
	} {
		var s scorer
		s.setKey(tt.key)
		assert.Equal(t, tt.want, s.score(tt.id), "key %d, id %q", tt.key, tt.id)
	}
}

func TestOrderVectors(t *testing.T) {
	replicas := newRouter(t, 5).View().Replicas()
	assert.Equal(t, []string{"r3", "r2", "r0", "r4", "r1"}, order(1, replicas))
	assert.Equal(t, []string{"r3", "r1", "r0", "r4", "r2"}, order(1337, replicas))
	assert.Equal(t, []string{"r0", "r4", "r3", "r2", "r1"}, order(14643705804678351452, replicas))
}

func TestFirstIsTheBeginningOfTheOrder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 7, 8, 9, 16, 100, 1000} {
		replicas := newRouter(t, n).View().Replicas()
		key := rnd.Uint64()
		scores := make([]uint64, n)
		var s scorer
		s.setKey(key)
		for i, r := range replicas {
			scores[i] = s.score(r.ID)
		}
		top, got := first(replicas, scores)
		require.Equal(t, min(n, head), got)
		for i, id := range order(key, replicas)[:got] {
			assert.Equal(t, id, replicas[top[i].at].ID)
		}
	}
}

func TestEqualScoresGoByID(t *testing.T) {
	replicas := newRouter(t, 12).View().Replicas()
	top, n := first(replicas, make([]uint64, 12))
	require.Equal(t, head, n)
	for i, id := range []string{"r0", "r1", "r10", "r11", "r2", "r3", "r4", "r5"} {
		assert.Equal(t, id, replicas[top[i].at].ID)
	}
}

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
