package server

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// An ejection is that of one replica by the Router's outlier detection, which runs on the reports of all clients and
// on the outcomes of picks here; the clients follow it. A half-open replica is probed by one client at a time, in
// rotation; those that accuse it come last.
type ejection struct {
	state  outlier.State
	cause  outlier.Cause
	since  time.Time
	prober string    // name of the client that may probe, or did last; "" = none
	probed time.Time // when it began
}

const (
	// probeTime is how long a client may probe, probeMost where it has a request on the replica.
	probeTime, probeMost = time.Second, time.Minute
)

// showed applies a watching client's report on outcomes.
func (w *watcher) showed(r *warmpathv1.OutcomeReport) error {
	d := w.deployment
	if r == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(r.GetReplicas()); n > len(d.roster.order)+maxDepartures {
		return invalid("outcomes: %d replicas, where there are %d", n, len(d.roster.order))
	}
	if d.balance.ledger.clients[w.client.id] != w.client {
		return nil // another watch took its place
	}
	rt := d.hosted.Load().router
	view := rt.View()
	for _, o := range r.GetReplicas() {
		m := d.roster.numbered(o.GetReplica())
		if m == nil || view.ByID(m.ID) == nil {
			continue
		}
		e := m.ejection
		probe := e != nil && e.state == outlier.HalfOpen && e.prober == w.client.id
		rt.Outliers().Add(rt.Outlier(view.ByID(m.ID)), w.principal.name, countsOf(o), probe)
		d.homes.add(m.ID, o)
		d.peers.showed(w.principal.name, o, probe)
	}
	d.judged(rt)
	return nil
}

// judged follows the Router's ejections where they have changed. Called with mu held.
func (d *deployment) judged(rt *router.Router) {
	rt.Health.Sync()
	if rt.Outliers().Version() != d.ejections {
		d.eject(rt, d.now())
		d.wake.give()
	}
}

// eject follows the Router's ejections. Called with mu held.
func (d *deployment) eject(rt *router.Router, now time.Time) {
	d.ejections = rt.Outliers().Version()
	changed, view := false, rt.View()
	for _, m := range d.roster.order {
		rep := view.ByID(m.ID)
		state, cause := rt.Outliers().State(rt.Outlier(rep))
		if state < outlier.HalfOpen {
			changed = changed || m.ejection != nil
			m.ejection = nil
			continue
		}
		e := m.ejection
		if e == nil {
			e = &ejection{since: now}
			m.ejection, changed = e, true
		}
		if e.cause = cause; e.state != state {
			e.state, e.probed, changed = state, time.Time{}, true
		}
		if state == outlier.HalfOpen && e.passProbe(m, &d.balance.ledger, now, rt.Outliers().Evidence(rt.Outlier(rep))) {
			changed = true
		}
	}
	if changed {
		d.ejectedVersion++
	}
}

// passProbe gives the probe of a half-open member to the next client when the last one's time is over. It reports
// whether the prober changes.
func (e *ejection) passProbe(m *member, l *ledger, now time.Time, evidence map[string]int) bool {
	if c := l.clients[e.prober]; c != nil && !c.ended {
		took := now.Sub(e.probed)
		if took < probeTime || took < probeMost && c.lines[m.number].ongoing > 0 {
			return false
		}
	}
	before := e.prober
	e.prober, e.probed = l.nextProber(m.number, e.prober, evidence), now
	return e.prober != before
}

// nextProber returns the client after last, "" where there is none. Clients without requests on the replica come
// first: their reports show whether they probe. Of those, the ones that accuse the replica come last; then the order
// is that of names. O(clients x log(clients)).
func (l *ledger) nextProber(number uint32, last string, evidence map[string]int) string {
	const busy = 2
	rank := make(map[string]int) // of the clients that watch
	for id, c := range l.clients {
		if c.ended {
			continue
		}
		rank[id] = 0
		if c.lines[number].ongoing > 0 {
			rank[id] += busy
		}
		if evidence[c.principal.name] > 0 {
			rank[id]++
		}
	}
	order := slices.SortedFunc(maps.Keys(rank), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank[a], rank[b]), cmp.Compare(a, b))
	})
	if len(order) == 0 {
		return ""
	}
	next := order[(slices.Index(order, last)+1)%len(order)]
	if rank[next] >= busy && rank[order[0]] < busy {
		return order[0]
	}
	return next
}

// outliersFor returns the outliers if they have changed for a watcher, else nil. Called with mu held.
func (d *deployment) outliersFor(w *watcher) *warmpathv1.OutlierUpdate {
	if w.outliers != nil && w.ejected == d.ejectedVersion {
		return nil
	}
	w.ejected = d.ejectedVersion
	u := new(warmpathv1.OutlierUpdate)
	for _, m := range d.roster.order {
		if e := m.ejection; e != nil {
			u.Replicas = append(u.Replicas, &warmpathv1.Outlier{
				Replica: m.number, Probe: e.state == outlier.HalfOpen && e.prober == w.client.id,
			})
		}
	}
	if w.outliers != nil && proto.Equal(w.outliers, u) {
		return nil
	}
	w.outliers = u
	return u
}
