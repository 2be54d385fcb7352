package outlier

// Counts are what the calls of one client showed of one replica since the counts before.
type Counts struct {
	Successes, Failures, Late int
}

// ownOut reports whether own calls keep the replica out.
func (r *Replica) ownOut() bool { return r.state >= HalfOpen && r.cause != CauseRemote }

// Take returns what own calls showed of a replica since the last Take, for a server that adds it up. anew is
// for another server: it returns the evidence that the replica has now.
func (d *Detector) Take(r *Replica, anew bool) (c Counts) {
	if !d.Ejects() {
		return c
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.states.look(d.now())
	c, r.counts = r.counts, Counts{}
	stands := int(r.strikes.Load())
	if r.ownOut() {
		stands = d.cfg.Failures
	}
	switch {
	case !anew:
	case r.late || r.ownOut() && r.cause == CauseLate:
		c.Late = max(c.Late, stands)
	default:
		c.Failures = max(c.Failures, stands)
	}
	return c
}

// SetRemote puts into force how the look-aside server treats a replica: Healthy, HalfOpen (this client may send its
// probe) or Ejected. A replica that only the server ejected starts slowly when it is taken back; one that own calls
// eject goes on by them. Both together eject no more than MaxShare of the fleet.
func (d *Detector) SetRemote(r *Replica, s State) {
	d.mu.Lock()
	defer d.mu.Unlock()
	members := len(d.states.fleet.members)
	most := min(max(int(d.cfg.MaxShare*float64(members)), 1), members-1)
	if s != Healthy && !r.out() && d.states.fleet.outs >= most {
		s = Healthy
	}
	if !d.Ejects() || r.remote == s {
		return
	}
	now := d.now()
	lifted, begun := s == Healthy, r.remote == Healthy
	d.states.fleet.change(r, func() {
		r.remote = s
		switch {
		case r.ownOut():
		case begun:
			r.taken = now
			d.states.ejections[CauseRemote]++
		case lifted:
			r.slowStart(now, d.cfg.SlowStart)
		}
	})
	d.states.fleet.free()
}

// Forsake ends how the look-aside server treats a replica when the server is lost: the next request is its probe.
func (d *Detector) Forsake(r *Replica) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.remote == Healthy {
		return
	}
	d.states.fleet.change(r, func() { r.remote = Healthy })
	if r.state < HalfOpen {
		d.states.halfOpen(r, CauseRemote, d.now())
	}
}

// Add takes what the calls of another client showed of a replica, the client's probe among them.
func (d *Detector) Add(r *Replica, principal string, c Counts, probe bool) {
	if !d.Ejects() {
		return
	}
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.states.look(now)
	d.states.principals.note(principal, now)
	m := Mark{Principal: principal, Probe: probe, picked: now}
	if c.Successes > 0 && (probe || !r.out()) {
		d.states.answer(r, &m, now, true)
	}
	if c.Failures > 0 {
		d.states.accuse(r, &m, now, c.Failures, false)
	}
	if c.Late > 0 { // they were picked that long ago, at least
		m.picked = now.Add(-d.cfg.LateMin)
		d.states.accuse(r, &m, now, c.Late, true)
	}
	d.states.judge(r, now)
}

// Principals returns how many principals the evidence against a replica is of; 0 where they have no names.
func (d *Detector) Principals(r *Replica) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(r.given)
}

// Accuser returns the principal on which the ejection of a replica rests alone, while others are active; "" =
// it does not.
func (d *Detector) Accuser(r *Replica) string {
	if d.AllHealthy() {
		return ""
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return r.accuser
}
