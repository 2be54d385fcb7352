package prefixaffinity

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policytest"
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
