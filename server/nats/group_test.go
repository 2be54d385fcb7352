package nats_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cluster"
	"github.com/warmpath/warmpath/internal/lab/freeport"
)

// However fast servers are replaced, one after the other, the store works again: a server that ends takes itself out of
// the majority that is needed. Versions go on rising where all were restarted at once.
func TestStoreOutlivesItsServers(t *testing.T) {
	at := freeport.Find(3)
	var buses [3]cluster.Bus
	var stores [3]policy.Store
	set := func(i int) uint64 {
		version, err := patient{stores[i], t}.Set(t.Context(), "k", nil, time.Minute)
		require.NoError(t, err)
		return version
	}
	for i := range buses {
		buses[i], stores[i] = openBus(t, at, i)
	}
	last := set(0)
	for i := range buses {
		buses[i].Close()
		buses[i], stores[i] = openBus(t, at, i)
		last = max(last, set(i))
	}
	for i := range buses {
		buses[i].Close()
	}
	for i := range buses {
		buses[i], stores[i] = openBus(t, at, i)
	}
	require.Greater(t, set(0), last)
	for i := range buses {
		buses[i].Close()
	}
}
