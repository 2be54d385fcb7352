package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// unevenHomes is what clients report of the replicas a, b and c, by number.
func unevenHomes() *warmpathv1.OutcomeReport {
	r := new(warmpathv1.OutcomeReport)
	for i, calls := range []uint32{100, 50, 150} {
		r.Replicas = append(r.Replicas, &warmpathv1.ReplicaOutcomes{Replica: uint32(i + 1), Homes: calls, Spilled: calls / 20})
	}
	return r
}

// homesOf is the weights of an update, by number of the replica.
func homesOf(u *warmpathv1.HomeUpdate) map[uint32]float32 {
	all := make(map[uint32]float32)
	for i, n := range u.GetReplicas() {
		all[n] = u.GetWeights()[i]
	}
	return all
}

func (w *watcher) newHomes() map[uint32]float32 {
	all, _, _ := w.news()
	for _, m := range all {
		if m.GetHomes() != nil {
			return homesOf(m.GetHomes())
		}
	}
	return nil
}

// Clients report calls by home; all watchers get the weights, those that come later too. All servers of a cluster have the
// same weights.
func TestHomesAreBalanced(t *testing.T) {
	for _, servers := range []int{1, 3} {
		c := newCluster(t, servers, clustered)
		c.ticks(40) // they count as parts of the cluster
		var clients []*watcher
		for i := range servers {
			clients = append(clients, c.client(i, fmt.Sprint("client", i)))
			require.Nil(t, clients[i].newHomes())
		}
		for range 2 {
			for _, w := range clients {
				require.NoError(t, w.showed(unevenHomes()))
			}
			c.deliver(nothingLost)
			c.tick(nothingLost)
			c.advance(time.Minute)
			c.ticks(2)
		}
		first := clients[0].newHomes()
		require.Len(t, first, 3)
		require.Less(t, first[3], first[1])
		require.Less(t, first[1], first[2])
		for i, w := range clients {
			if i > 0 {
				require.Equal(t, first, w.newHomes(), "server %d of %d", i, servers)
			}
			require.Nil(t, w.newHomes(), "nothing new")
			d := c.servers[i]
			require.Equal(t, first, c.client(i, "late").newHomes())
			require.InDelta(t, first[3], d.describe(exactView).GetReplicas()[2].GetHomeWeight(), 1e-6)
		}
		if servers > 1 { // one that starts gets them in a snapshot
			c.start(1)
			c.ticks(40)
			require.Equal(t, first, c.client(1, "again").newHomes())
		}
	}
}
