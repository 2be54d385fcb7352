package routing

import "time"

// connects notes that the connection of a replica comes or goes, before the View says so. A replica that is new beside
// others that have long been there, or that was away for longer than a moment, begins slowly: everybody would find it
// idle. A connection that blinks changes nothing. Called with mu held.
func (r *Router) connects(l *live, up bool) {
	l.set(connectedBit, up)
	if !up {
		if r.tends {
			l.health.lost = r.opts.Now()
		}
		return
	}
	l.set(leaving, false)
	if r.tends {
		r.arrive(l, r.opts.Now())
	}
}

// arrive begins the slow start of a replica that is connected, where there is to be one. Called with mu held.
func (r *Router) arrive(l *live, now time.Time) {
	h := &l.health
	e := &r.opts.Ejection
	if len(r.view.Load().connected) == 0 && r.wards.upSince.IsZero() {
		r.wards.upSince = now
	}
	missing := !h.met || !h.lost.IsZero() && now.Sub(h.lost) >= max(e.BaseTime, time.Second)
	h.met, h.lost = true, time.Time{}
	founding := now.Sub(r.wards.upSince) < e.SlowStart
	if missing && !founding && e.SlowStart > 0 && h.cond == Well {
		r.modify(l, func(h *health) { h.begin(now, e.SlowStart) })
	}
}
