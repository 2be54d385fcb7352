package router

import (
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

// mayServe returns the error that a request must get at once, and whether any eligible replica has room.
func (m *model) mayServe(q *policy.Request) (err error, roomLeft bool) {
	up, may, mayUp := 0, 0, 0
	for _, mem := range m.fleet {
		if m.connected[mem.ID] {
			up++
		}
		if !m.allowed(q, mem) {
			continue
		}
		may++
		if m.connected[mem.ID] {
			mayUp++
			most := m.boundNow(mem)
			if m.queued() == 0 { // then no mark holds back a request that cannot wait
				most = m.capacity(mem)
			}
			roomLeft = roomLeft || m.count(mem.ID) < most
		}
	}
	switch {
	case up == 0:
		return ErrNotConnected, false
	case may == 0:
		return ErrNoSuchReplica, false
	case mayUp == 0:
		return ErrNotConnected, false
	}
	return nil, roomLeft
}

func (m *model) allowed(q *policy.Request, mem Member) bool {
	if mem.Draining || slices.Contains(q.Exclude, mem.ID) {
		return false
	}
	if q.Pin != "" {
		return q.Pin == mem.ID
	}
	declared := slices.ContainsFunc(m.fleet, func(o Member) bool { return slices.Contains(o.Models, q.Model) })
	return !declared || len(mem.Models) == 0 || slices.Contains(mem.Models, q.Model)
}

func (m *model) capacity(mem Member) int {
	switch {
	case mem.MaxOngoing == 0:
		return 2
	case mem.MaxOngoing < 0:
		return 1 << 30
	}
	return mem.MaxOngoing
}

// reserved records a call that has just got a reservation, and checks the pick.
func (m *model) reserved(c *call) {
	d := c.b.Decision
	c.w, c.id = nil, d.Replica.ID
	c.charged = min(max(c.q.PromptTokens-max(d.MatchedTokens, d.ExpectedTokens), 0), state.MaxPrefill)
	m.picks[c.id]++
	if !slices.Contains(m.live, c) {
		m.live = append(m.live, c)
	}
	mem := m.find(c.id)
	require.NotNil(m.t, mem, "picked a replica that has left")
	require.Same(m.t, m.r.View().ByID(c.id), d.Replica, "picked a stale replica")
	require.True(m.t, m.connected[c.id], "picked a replica that is not connected")
	require.True(m.t, m.allowed(c.q, *mem), "picked a replica that the request must not use")
	if part.OfRequest(c.q).Attempt > 0 && d.Reason != policy.ReasonQueued {
		require.Equal(m.t, policy.ReasonRetry, d.Reason)
	}
	require.NotContains(m.t, []policy.Reason{policy.ReasonRetry, policy.ReasonQueued}, d.Rule)
	require.True(m.t, d.Rank() <= 0 || d.Rank() < mem.Ranks, "a rank that it does not have")
}

// notOvertaking checks that no earlier waiter still waits for the replica of the waiter that was served.
func (m *model) notOvertaking(done *call, w *waiter) {
	if m.r.Policy().Name == "hostile" {
		return // what it would wait for now may differ from what it would have taken then
	}
	for _, c := range m.live {
		if c.waiting() && served(c.w, w) < 0 {
			require.NotContains(m.t, m.wants(c), done.id, "overtook")
			continue
		}
		if c.waiting() && c.q.Priority >= done.q.Priority && c.w.seq < w.seq {
			require.NotContains(m.t, m.wants(c), done.id, "overtook an earlier waiter")
		}
	}
}

// wants lists the replicas that a waiting call would take.
func (m *model) wants(c *call) (ids []string) {
	if c.b.Decision.WaitFor != nil {
		for _, r := range c.b.Decision.WaitFor {
			require.Same(m.t, m.r.View().ByID(r.ID), r, "waits for a stale replica")
			ids = append(ids, r.ID)
		}
		return ids
	}
	for _, mem := range m.fleet {
		if m.connected[mem.ID] && m.allowed(c.q, mem) {
			ids = append(ids, mem.ID)
		}
	}
	return ids
}

func (m *model) check() {
	t, r, v := m.t, m.r, m.r.View()
	tokens, reservations := map[string]int{}, map[string]int{}
	for _, c := range m.live {
		if c.holds() {
			reservations[c.id]++
			tokens[c.id] += c.charged
		}
	}
	require.Len(t, v.Replicas(), len(m.fleet))
	var load float64
	up := 0
	for i, mem := range m.fleet {
		rep := v.Replicas()[i]
		require.Equal(t, mem.ID, rep.ID)
		require.Equal(t, i, rep.Index())
		require.Equal(t, m.connected[mem.ID], rep.Connected(), mem.ID)
		require.Equal(t, reservations[mem.ID], rep.Ongoing(), mem.ID)
		require.Equal(t, tokens[mem.ID], rep.QueuedTokens(), mem.ID)
		if m.picks[mem.ID] > 0 {
			require.LessOrEqual(t, rep.Ongoing(), m.capacity(mem), "more reservations than max_ongoing")
		}
		if rep.Connected() {
			require.Same(t, rep, v.Connected()[up])
			up++
			ongoing, queued := m.checkPeerLoad(rep)
			load += (float64(tokens[mem.ID]) + float64(queued) +
				policy.RequestCost*float64(reservations[mem.ID]+ongoing)) / m.checkRate(rep)
		}
	}
	require.Len(t, v.Connected(), up)
	if up > 0 {
		require.InDelta(t, load/float64(up), meanLoad(v), 0.01*float64(up))
	}

	for id, l := range departed(r) {
		require.Nil(t, m.find(id), "departed and in the fleet")
		require.Positive(t, reservations[id])
		require.EqualValues(t, reservations[id], l.Book.Load()>>state.TokenBits)
	}
	for id := range reservations {
		if m.find(id) == nil {
			require.Contains(t, departed(r), id)
		}
	}

	require.Equal(t, m.queued(), r.Queued())
	require.LessOrEqual(t, r.Queued(), m.bound)
	for _, c := range m.live {
		if !c.waiting() {
			continue
		}
		wants := m.wants(c)
		require.NotEmpty(t, wants, "waits for no replica")
		for _, id := range wants {
			mem := m.find(id)
			require.True(t, m.connected[id] && m.allowed(c.q, *mem), "waits for a replica that can never serve it")
			require.GreaterOrEqual(t, reservations[id], m.boundNow(*mem), "waits although there is room on %s", id)
		}
		require.True(t, c.w.stands)
		require.Equal(t, c.b.Decision.WaitFor, c.w.wants)
	}
	lines := map[string]line{}
	for _, w := range r.queue.waiters {
		for _, rep := range w.wants {
			lines[rep.ID] = append(lines[rep.ID], w)
		}
	}
	for _, rep := range v.Replicas() {
		require.True(t, slices.Equal(lines[rep.ID], liveOf(rep).waiters), rep.ID)
	}
	m.checkQueue()
}

// finish ends everything, the waiters as they are served. No waiter is left once all others have ended and marks
// have expired.
func (m *model) finish() {
	for len(m.live) > 0 {
		m.picks = map[string]int{}
		before := len(m.live)
		m.end()
		if len(m.live) == before {
			m.clock.advance(mostHold)
		}
		m.collect()
		require.True(m.t, len(m.live) < before || m.one((*call).holds) != nil || !m.r.queue.marked.IsZero(), "the waiters are never served")
		m.check()
	}
	for _, rep := range m.r.View().Replicas() {
		require.Zero(m.t, rep.Ongoing())
		require.Zero(m.t, rep.QueuedTokens())
		require.Empty(m.t, liveOf(rep).waiters)
	}
	require.Zero(m.t, m.r.Queued())
	require.Empty(m.t, m.r.queue.any)
	require.Empty(m.t, departed(m.r))
	require.Zero(m.t, len(m.r.queue.waiters))
	require.NoError(m.t, m.r.Close())
}
