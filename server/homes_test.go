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
		o := &warmpathv1.ReplicaOutcomes{Replica: uint32(i + 1), Homes: calls, Spilled: calls / 20}
		r.Replicas = append(r.Replicas, o)
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

// Clients report calls by home. All watchers get the weights, those that come later too. All servers of a cluster have
// the same weights.
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

// weights are those of the homes of server i, by id of the replica.
func (c *clusterOf) weights(i int) map[string]float32 {
	all := make(map[string]float32)
	for _, r := range c.servers[i].describe(exactView).GetReplicas() {
		all[r.GetId()] = float32(r.GetHomeWeight())
	}
	return all
}

// While servers do not hear from each other, each side changes the weights by its own clients' calls. Then all servers
// have those of the last change, those that start too.
func TestHomesAfterPartition(t *testing.T) {
	const servers = 3
	c := newCluster(t, servers, clustered)
	cut := func(from, to *wireEnd) bool { return from == c.ends[2] || to == c.ends[2] }
	c.tick(cut) // the windows begin
	other := unevenHomes()
	other.Replicas[0].Homes = 90
	for round := range 3 {
		for i := range servers {
			w, report := c.client(i, fmt.Sprint("client", i)), unevenHomes()
			if i == 2 {
				report = other
			}
			if i < 2 && round > 0 || i == 2 && round < 2 { // so the last change is not that of server 2
				require.NoError(t, w.showed(report))
			}
		}
		for range 900 { // a window at most
			c.tick(cut)
		}
	}
	last := c.weights(0)
	require.Equal(t, last, c.weights(1))
	require.NotZero(t, c.weights(2)["a"])
	require.NotEqual(t, last, c.weights(2))
	for i := range servers {
		c.ticks(50)
		for j := range servers {
			require.Equal(t, last, c.weights(j), "server %d", j)
		}
		c.start(i)
	}
}

// A replica that comes back has its weight at all clients, those that began to watch in the meantime too.
func TestHomeOfAReplicaThatComesBack(t *testing.T) {
	c := newCluster(t, 1, clustered)
	d := c.servers[0]
	register(t, d, "10.0.0.9:1")
	w := c.client(0, "client")
	c.ticks(1)
	for range 3 {
		report := unevenHomes()
		report.Replicas = append(report.Replicas, &warmpathv1.ReplicaOutcomes{Replica: 4, Homes: 60})
		require.NoError(t, w.showed(report))
		for range 40 {
			c.ticks(10)
			register(t, d, "10.0.0.9:1")
		}
	}
	weight := w.newHomes()[4]
	require.Greater(t, weight, float32(1))
	_, err := d.register(&warmpathv1.RegisterRequest{Leaving: true}, replicaAt("10.0.0.9:1", "10.0.0.9:1"))
	require.NoError(t, err)
	late := c.client(0, "late")
	require.Len(t, late.newHomes(), 3)
	register(t, d, "10.0.0.9:1")
	require.Equal(t, weight, late.newHomes()[5])
}
