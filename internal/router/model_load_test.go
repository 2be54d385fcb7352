package router

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// foreign is what a model told of others on one replica, by broadcast and by report.
type foreign struct{ told, reported PeerLoad }

// tell broadcasts the load of others, or lets a replica report its own.
func (m *model) tell() {
	id := m.someID()
	load := PeerLoad{ID: id, Ongoing: m.rnd.IntN(6), QueuedTokens: m.rnd.Int64N(9000)}
	if m.chance(40) {
		m.r.SetPeerLoad([]PeerLoad{load})
		if m.find(id) != nil {
			m.foreign[id] = foreign{told: load}
		}
		return
	}
	m.r.Report(id, ReplicaReport{Ongoing: load.Ongoing, QueuedTokens: load.QueuedTokens, KVTokens: m.rnd.IntN(3)})
	if m.find(id) == nil {
		return
	}
	for _, c := range m.live {
		if c.holds() && c.id == id {
			load.Ongoing--
			load.QueuedTokens -= int64(c.charged)
		}
	}
	m.foreign[id] = foreign{told: m.foreign[id].told, reported: load}
}

// took is how long the first message takes: every other replica is slow.
func (m *model) took(id string) time.Duration {
	d := time.Duration(1+m.rnd.IntN(5)) * time.Second
	if id[len(id)-1]%2 == 0 {
		d *= 5
	}
	return d
}

// checkForeign checks what the Router knows of others on a replica, and returns it.
func (m *model) checkForeign(rep *policy.Replica) (ongoing int, tokens int64) {
	ongoing, tokens = rep.PeerLoad()
	if !m.r.takesLoad {
		f := m.foreign[rep.ID].told
		require.Equal(m.t, [2]int64{int64(f.Ongoing), f.QueuedTokens}, [2]int64{int64(ongoing), tokens}, rep.ID)
		return ongoing, tokens
	}
	want := m.foreign[rep.ID].told
	if !liveOf(rep).reported.IsZero() {
		require.Contains(m.t, m.r.reports, liveOf(rep), "nobody will let it expire")
		want = m.foreign[rep.ID].reported
	}
	require.Equal(m.t, max(want.Ongoing, 0), ongoing, rep.ID)
	require.Equal(m.t, max(want.QueuedTokens, 0), tokens, rep.ID)
	return ongoing, tokens
}

// checkRate checks that a rate is the weight, or was learned and within bounds.
func (m *model) checkRate(rep *policy.Replica) float64 {
	rate := rep.Rate()
	if !m.r.learns {
		require.Equal(m.t, 1/(1/weightOf(rep)), rate)
	}
	require.InDelta(m.t, 1, rate/weightOf(rep)/liveOf(rep).factor, 1e-9)
	require.GreaterOrEqual(m.t, liveOf(rep).factor, 1./maxRate)
	require.LessOrEqual(m.t, liveOf(rep).factor, float64(maxRate))
	return rate
}
