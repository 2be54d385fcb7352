package outlier

import "time"

// Suspected reports whether any evidence stands against a replica. It takes no lock.
func (r *Replica) Suspected() bool { return r.strikes.Load() > 0 }

// overdue enters as evidence how many times the limit an attempt has waited, since it was picked or the replica last
// answered any call, less what was entered before.
func (s *states) overdue(a *Attempt, now time.Time) {
	r := a.replica
	if a.picked.Before(r.since) { // the state rests on it already
		return
	}
	if r.answered.After(a.from) {
		a.from, a.counted = r.answered, 0
	}
	times := r.limits[a.kind()].times(a.work, now.Sub(a.from))
	if n := times - a.counted; n > 0 {
		a.counted = times
		m := a.Mark
		m.picked = a.from
		s.accuse(r, &m, now, n, true)
	}
}

// wait calls overdue for the oldest calls that wait on a replica.
func (s *states) wait(r *Replica, now time.Time) {
	const glance = 256
	least := max(r.limits[0].least, r.limits[1].least)
	a := r.waiting.first
	for i := 0; a != nil && i < glance && now.Sub(a.picked) >= least; i++ {
		s.overdue(a, now)
		a = a.next
	}
}

// decided ends an attempt's probe, so that another may follow, and reports whether it was under way.
func (s *states) decided(a *Attempt) bool {
	r := a.replica
	if r.probe != a {
		return false
	}
	r.probe = nil
	s.fleet.readmit(r)
	s.fleet.free()
	return true
}

// answer notes that a replica answered a call. A timely answer takes back the evidence; any answer ends an ejection for
// being late.
func (s *states) answer(r *Replica, m *Mark, now time.Time, timely bool) {
	r.answered, r.timely = now, timely
	if m.picked.After(r.reached) {
		r.reached = m.picked
	}
	if timely {
		r.acquit()
	}
	proves := timely && (m.Probe || !m.picked.IsZero() && m.picked.After(r.taken))
	if proves || !r.out() {
		r.counts.Successes++
	}
	switch {
	case r.state < HalfOpen:
	case proves && r.accuser != "":
		s.overrule(r, now)
	case proves:
		s.recover(r, now)
	case r.state == Ejected && r.cause == CauseLate:
		r.until = now // it answers again: its probe may begin
	}
}

// accuse enters evidence against a replica; judge follows.
func (s *states) accuse(r *Replica, m *Mark, now time.Time, n int, late bool) {
	if n = r.weigh(m.Principal, min(n, 1<<10), s.cfg.Failures, now); n == 0 {
		return
	}
	failed := m.Probe && r.effective() == HalfOpen
	if !failed && r.state >= HalfOpen {
		if r.accuser != "" && m.Principal != r.accuser {
			s.eject(r, r.cause, now) // a second principal agrees
		}
		return
	}
	if late {
		r.counts.Late += n
	} else {
		r.counts.Failures += n
	}
	if failed {
		s.eject(r, CauseProbe, now)
		return
	}
	if !r.Suspected() || m.picked.Before(r.struck) {
		r.struck = m.picked
	}
	r.late = r.late || late
	r.strikes.Add(int32(n))
}

// judge ejects a replica with enough evidence, if enough others stay and, where it is late, if the others are timely.
func (s *states) judge(r *Replica, now time.Time) {
	if int(r.strikes.Load()) < s.cfg.Failures || r.state >= HalfOpen {
		return
	}
	most := max(int(s.cfg.MaxShare*float64(s.fleet.connected)), 1)
	if !r.out() && s.fleet.outs >= most { // others may have been ejected for it already
		return
	}
	open, fine, bad := 0, 0, 0
	for _, o := range s.fleet.members {
		if o == r || !o.connected || o.out() || o.host.Draining() {
			continue
		}
		open++
		switch {
		case o.Suspected():
			bad++
		case o.timely && o.reached.After(r.struck):
			fine++
		}
	}
	switch {
	case open == 0 && !r.out():
	case !r.late:
		s.eject(r, CauseFault, now)
	case fine > 0 && fine >= 2*bad:
		s.eject(r, CauseLate, now)
	}
}

// acquit takes back the evidence.
func (r *Replica) acquit() {
	r.strikes.Store(0)
	r.late = false
	r.counts.Failures, r.counts.Late = 0, 0
	clear(r.given)
}
