package router

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/load"
)

// peerLoad is the peer load that a model set on one replica, by broadcast and by report.
type peerLoad struct {
	broadcast, reported load.Peer
	until               time.Time // the report counts; zero = it does not
}

// reports records that a replica reported its peer load.
func (m *model) reports(id string, p load.Peer) {
	f := peerLoad{broadcast: m.peerLoad[id].broadcast}
	if m.r.uses&policy.UsesLoad != 0 {
		f.reported, f.until = p, m.clock.now.Add(load.ReportTTL)
	}
	m.peerLoad[id] = f
}

// setPeerLoad broadcasts peer load, or lets a replica report its own.
func (m *model) setPeerLoad() {
	id := m.someID()
	p := load.Peer{ID: id, Ongoing: m.rnd.IntN(6), QueuedTokens: m.rnd.Int64N(9000)}
	if m.chance(40) {
		m.r.Load.SetPeers([]load.Peer{p})
		if m.find(id) != nil {
			m.peerLoad[id] = peerLoad{broadcast: p}
		}
		return
	}
	m.r.Report(id, load.Report{Ongoing: p.Ongoing, QueuedTokens: p.QueuedTokens, KVTokens: m.rnd.IntN(3)})
	if m.find(id) == nil {
		return
	}
	for _, c := range m.live {
		if c.holds() && c.id == id {
			p.Ongoing--
			p.QueuedTokens -= int64(c.charged)
		}
	}
	m.reports(id, p)
}

// took is how long the first message takes: every other replica is slow.
func (m *model) took(id string) time.Duration {
	d := time.Duration(1+m.rnd.IntN(5)) * time.Second
	if id[len(id)-1]%2 == 0 {
		d *= 5
	}
	return d
}

// checkPeerLoad checks the Router's peer load on a replica, and returns it.
func (m *model) checkPeerLoad(rep *policy.Replica) (ongoing int, tokens int64) {
	ongoing, tokens = rep.PeerLoad()
	f := m.peerLoad[rep.ID]
	is := func(p load.Peer) bool { return max(p.Ongoing, 0) == ongoing && max(p.QueuedTokens, 0) == tokens }
	switch {
	case f.until.IsZero():
		require.True(m.t, is(f.broadcast), rep.ID)
	case m.clock.now.Before(f.until) && !m.clock.backwards:
		require.True(m.t, is(f.reported), "%s: %+v, has %d %d, now %v", rep.ID, f, ongoing, tokens, m.clock.now)
	case !is(f.reported): // a pick has seen that it is over
		require.True(m.t, is(f.broadcast), rep.ID)
		m.peerLoad[rep.ID] = peerLoad{broadcast: f.broadcast}
	}
	return ongoing, tokens
}

// checkRate checks that a rate is the weight, or was learned and within bounds.
func (m *model) checkRate(rep *policy.Replica) float64 {
	rate, weight := rep.Rate(), rep.Weight
	if weight <= 0 {
		weight = 1
	}
	if m.r.uses&policy.UsesLoad == 0 {
		require.Equal(m.t, 1/(1/weight), rate)
	}
	require.GreaterOrEqual(m.t, rate/weight, 1./8-1e-9)
	require.LessOrEqual(m.t, rate/weight, 8+1e-9)
	return rate
}
