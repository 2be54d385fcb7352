package nats_test

import (
	"testing"

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
	for i := range buses {
		buses[i], stores[i] = openBus(t, at, i)
	}
	last := set(t, stores[0], "k")
	for i := range buses {
		buses[i].Close()
		buses[i], stores[i] = openBus(t, at, i)
		last = max(last, set(t, stores[i], "k"))
	}
	for i := range buses {
		buses[i].Close()
	}
	for i := range buses {
		buses[i], stores[i] = openBus(t, at, i)
	}
	require.Greater(t, set(t, stores[0], "k"), last)
	for i := range buses {
		buses[i].Close()
	}
}
