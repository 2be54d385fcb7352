package rendezvous_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/poweroftwo"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/rendezvous"
	"github.com/warmpath/warmpath/internal/routertest"
)

// fleet returns n replicas, r0, r1, ….
func fleet(n int) []*policy.Replica {
	replicas := make([]*policy.Replica, n)
	for i := range replicas {
		replicas[i] = &policy.Replica{Attributes: policy.Attributes{ID: fmt.Sprint("r", i)}}
	}
	return replicas
}

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
		var s rendezvous.Scorer
		s.SetKey(tt.key)
		assert.Equal(t, tt.want, s.Score(&policy.Replica{Attributes: policy.Attributes{ID: tt.id}}), "key %d, id %q", tt.key, tt.id)
	}
}

func TestOrderVectors(t *testing.T) {
	replicas := fleet(5)
	assert.Equal(t, []string{"r3", "r2", "r0", "r4", "r1"}, routertest.Order(1, replicas))
	assert.Equal(t, []string{"r3", "r1", "r0", "r4", "r2"}, routertest.Order(1337, replicas))
	assert.Equal(t, []string{"r0", "r4", "r3", "r2", "r1"}, routertest.Order(14643705804678351452, replicas))
}

// Replicas are the home of as many keys as they have weight. A weight that changes moves no key between two others.
func TestHomeWeights(t *testing.T) {
	p, err := poweroftwo.New(poweroftwo.Config{})
	require.NoError(t, err)
	r := policytest.NewRouter(t, p, policytest.Fleet(4))
	const keys = 20_000
	homes := func(weights map[string]float64) (all []string, parts map[string]float64) {
		r.Load.SetHomes(weights)
		parts = make(map[string]float64)
		for key := range uint64(keys) {
			home := routertest.Order(key*0x9e3779b97f4a7c15, r.View().Replicas())[0]
			all, parts[home] = append(all, home), parts[home]+1./keys
		}
		return all, parts
	}
	plain, parts := homes(nil)
	require.InDelta(t, 0.25, parts["r1"], 0.01)
	ones, _ := homes(map[string]float64{"r1": 1})
	require.Equal(t, plain, ones)
	weighted, parts := homes(map[string]float64{"r1": 2, "r2": 0.5, "r3": 1.5})
	for id, weight := range map[string]float64{"r0": 1, "r1": 2, "r2": 0.5, "r3": 1.5} {
		require.InDelta(t, weight/5, parts[id], 0.01, id)
	}
	more, _ := homes(map[string]float64{"r1": 3, "r2": 0.5, "r3": 1.5})
	for i, home := range more {
		if home != weighted[i] {
			require.Equal(t, "r1", home)
		}
	}
	odd, _ := homes(map[string]float64{"r1": math.NaN(), "r2": math.Inf(1), "r3": -1})
	require.Equal(t, plain, odd)
}

func TestFirstIsTheBeginningOfTheOrder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 7, 8, 9, 16, 100, 1000} {
		replicas := fleet(n)
		key := rnd.Uint64()
		scores := make([]uint64, n)
		var s rendezvous.Scorer
		s.SetKey(key)
		for i, r := range replicas {
			scores[i] = s.Score(r)
		}
		top := rendezvous.First(make([]rendezvous.Place, 0, 16), replicas, scores)
		require.Len(t, top, min(n, 16))
		for i, id := range routertest.Order(key, replicas)[:len(top)] {
			assert.Equal(t, id, replicas[top[i].At].ID)
		}
	}
}

func TestEqualScoresGoByID(t *testing.T) {
	replicas := fleet(20)
	top := rendezvous.First(make([]rendezvous.Place, 0, 16), replicas, make([]uint64, 20))
	require.Len(t, top, 16)
	for i, id := range []string{"r0", "r1", "r10", "r11", "r12", "r13", "r14", "r15", "r16", "r17", "r18", "r19", "r2", "r3", "r4", "r5"} {
		assert.Equal(t, id, replicas[top[i].At].ID)
	}
}
