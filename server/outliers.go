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

// outliers are the replicas that the Router's outlier detection ejects. It runs on the reports of all clients and on
// the outcomes of picks here, and the clients follow it. A half-open replica is probed by one client at a time, in
// rotation; those that accuse it come last. It is used with the deployment's mutex held.
type outliers struct {
	replicas map[uint32]*ejection // by number
	stamp    uint64               // grows with every change
	version  uint64               // of the outliers of router, last seen
	router   *router.Router
}

// An ejection is one replica that is ejected or half-open.
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
		e := d.outliers.replicas[m.number]
		c := outlier.Counts{
			Successes: countOf(o.GetSuccesses()), Failures: countOf(o.GetFailures()), Late: countOf(o.GetLate()),
		}
		probe := e != nil && e.state == outlier.HalfOpen && e.prober == w.client.id
		rt.Outliers().Add(rt.Outlier(view.ByID(m.ID)), w.principal.name, c, probe)
	}
	rt.Health.Sync()
	if d.eject(rt, d.now()) {
		d.wake.give()
	}
	return nil
}

// countOf bounds a count of a report.
func countOf(n uint32) int { return int(min(n, 1<<20)) }

// eject follows the Router's ejections, and reports whether they have changed. Called with mu held.
func (d *deployment) eject(rt *router.Router, now time.Time) bool {
	x := &d.outliers
	before := x.stamp
	if v := rt.Outliers().Version(); v != x.version || rt != x.router {
		x.version, x.router = v, rt
		x.gather(d.roster.order, rt, now)
	}
	for number, e := range x.replicas {
		if e.state == outlier.HalfOpen {
			x.passProbe(d.roster.numbered(number), e, &d.balance.ledger, rt, now)
		}
	}
	return x.stamp != before
}

// gather copies the Router's ejections.
func (x *outliers) gather(order []*member, rt *router.Router, now time.Time) {
	view, found := rt.View(), make(map[uint32]*ejection)
	for _, m := range order {
		rep := view.ByID(m.ID)
		if rep == nil {
			continue
		}
		state, cause := rt.Outliers().State(rt.Outlier(rep))
		if state < outlier.HalfOpen {
			continue
		}
		e := x.replicas[m.number]
		if e == nil {
			e = &ejection{since: now}
		}
		if e.state != state {
			x.stamp++
			e.state, e.probed = state, time.Time{}
		}
		e.cause = cause
		found[m.number] = e
	}
	if len(found) != len(x.replicas) {
		x.stamp++
	}
	x.replicas = found
}

// passProbe gives the probe of a half-open member to the next client when the last one's time is over.
func (x *outliers) passProbe(m *member, e *ejection, l *ledger, rt *router.Router, now time.Time) {
	if m == nil {
		return
	}
	c := l.clients[e.prober]
	if c != nil && !c.ended {
		took := now.Sub(e.probed)
		if took < probeTime || took < probeMost && c.lines[m.number].ongoing > 0 {
			return
		}
	}
	rep := rt.View().ByID(m.ID)
	next := l.nextProber(m.number, e.prober, func(c *client) bool {
		return rep != nil && rt.Outliers().Accuses(rt.Outlier(rep), c.principal)
	})
	e.probed = now
	if next != e.prober {
		e.prober = next
		x.stamp++
	}
}

// nextProber returns the client after last. Clients without requests on the replica come first: their reports show
// whether they probe. Of those, the ones that accuse the replica come last; then the order is that of names.
func (l *ledger) nextProber(number uint32, last string, accuses func(*client) bool) string {
	var names []string
	rank := func(id string) int {
		if accuses(l.clients[id]) {
			return 1
		}
		return 0
	}
	for _, idle := range []bool{true, false} {
		for id, c := range l.clients {
			if !c.ended && (c.lines[number].ongoing == 0) == idle {
				names = append(names, id)
			}
		}
		if len(names) > 0 {
			slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b)) })
			return names[(slices.Index(names, last)+1)%len(names)]
		}
	}
	return ""
}

// since returns the outliers if they have changed for a watcher, else nil.
func (x *outliers) since(w *watcher) *warmpathv1.OutlierUpdate {
	if w.outliers != nil && w.outlierStamp == x.stamp {
		return nil
	}
	w.outlierStamp = x.stamp
	u := new(warmpathv1.OutlierUpdate)
	for _, number := range slices.Sorted(maps.Keys(x.replicas)) {
		e := x.replicas[number]
		u.Replicas = append(u.Replicas, &warmpathv1.Outlier{
			Replica: number, Probe: e.state == outlier.HalfOpen && e.prober == w.client.id,
		})
	}
	if w.outliers != nil && proto.Equal(w.outliers, u) {
		return nil
	}
	w.outliers = u
	return u
}
