package router

import (
	"log/slog"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

// A choice is one request over one view, with what decides and the decision to fill in. The Router's mutex is held
// while its methods run.
type choice struct {
	r *Router
	p *policy.Policy
	q *policy.Request
	v *view
	d *policy.Decision
}

// choose calls the policy, checks its answer, and reserves; or it reserves what a look-aside server assigned, nil =
// nothing. Its errors are the sentinels themselves; with ErrFull b.Decision has what the request waits for.
// now is the time, or zero where the clock was not read yet. Called with mu held.
func (r *Router) choose(q *policy.Request, b *Reservation, a *Assigned, now time.Time) (err error) {
	if b.held.Load() {
		return ErrHeld
	}
	all, s := r.view.Load(), part.OfRequest(q)
	var x *legs // nil = the request is served whole
	if s.Legs != nil {
		x = legsOf(q)
		if err := x.begin(all); err != nil {
			return err
		}
	}
	v := all.whole
	s.Plain, s.AnyModel, s.Keeper = !r.Rollout.Decides(q), v.anyModel(q), nil
	b.Decision = policy.Decision{}
	c := choice{r, &r.opts.Policy, q, v, &b.Decision}
	if s.Plain {
		c.p = &r.opts.Plain
	}
	switch {
	case r.queue.closed:
		return ErrClosed
	case a != nil:
		err = c.assigned(a)
		if err == nil && x != nil {
			err = c.assignedLegs(x, a)
		}
	case len(all.connected) == 0, q.Pin == "" && len(v.connected) == 0:
		return ErrNotConnected
	case q.Pin != "":
		err = c.pinned()
	case x != nil && x.from != nil:
		err = c.decodes(x)
	default:
		r.Load.Expire()
		if len(v.leaving) > 0 {
			s.Keeper = r.Fleet.keeper(q, v)
		}
		if err = c.ask(); err != nil && (len(v.leaving) > 0 || !r.outliers.AllHealthy()) {
			err = c.resort()
		}
		if x != nil && x.prefill != nil {
			err = c.pair(x, err)
		}
	}
	if err != nil {
		return err
	}
	work := 0.0
	if x != nil && x.two() {
		part.OfDecision(&x.prefill.Decision).Prefill = &x.Legs
		work = r.charged(&x.request, x.view, x.prefill, 0, now)
	}
	r.charged(q, v, b, work, now)
	return nil
}

// ask calls the policy and corrects it.
func (c choice) ask() error {
	q, v, d := c.q, c.v, c.d
	if c.p.Preview != nil && part.OfRequest(q).Query {
		*d = c.p.Preview(q, v)
	} else {
		*d = c.p.Choose(q, v)
		part.OfDecision(d).Chosen = c.p.Observer.Withdrawn != nil && d.Replica != nil && !part.OfRequest(q).Plain
	}
	if d.Replica != nil && v.has(d.Replica) && v.Available(q, d.Replica) {
		return nil
	}
	if d.Replica == nil {
		return c.correct()
	}
	picked := *d
	err := c.correct()
	if err != nil || d.Replica.ID != picked.Replica.ID {
		c.corrected(&picked)
	}
	return err
}

// corrected notes that a pick of the policy is not used. Called with mu held.
func (c choice) corrected(picked *policy.Decision) {
	withdrawn(&c.p.Observer, c.q, picked)
	rep := c.v.byID(picked.Replica.ID)
	if rep != nil && rep.Connected() && c.v.Allowed(c.q, rep) {
		return // only full: the request waits for it
	}
	if c.r.Counts.Corrections.Add(1) == 1 {
		slog.Warn("warmpath: the policy picks a replica that the request may not be given: "+
			"the least loaded is taken instead; a policy picks among those that View.Available reports (logged once)",
			"policy", c.p.Name, "replica", picked.Replica.ID)
	}
}

// resort asks again with those that are passed over as long as there are others: those that are starting slowly and,
// where no other could ever serve the request, those that report that they drain, and then those that are ejected. These
// are no resort while another is being connected for the first time.
func (c choice) resort() (err error) {
	s := part.OfRequest(c.q)
	defer func() { s.Resort = state.NoResort }()
	for s.Resort = state.SlowStarters; s.Resort <= state.Ejected; s.Resort++ {
		if s.Resort == state.Ejected && c.v.coming(c.q) {
			return ErrConnecting
		}
		if err = c.ask(); err == nil || err == ErrFull {
			break
		}
	}
	return err
}

// pinned takes the replica that the request names, whatever its role.
func (c choice) pinned() error {
	r, q := c.r, c.q
	rep := c.v.byID(q.Pin)
	if rep == nil {
		rep = r.view.Load().byID(q.Pin)
	}
	ok := rep != nil && !rep.Draining && !excluded(q, part.OfRequest(q), rep)
	err := c.take(rep, ok, policy.To(rep, policy.ReasonPinned))
	if err == nil && r.own.Routed != nil && !part.OfRequest(q).Plain {
		c.d.MatchedTokens = matched(&r.opts.Policy, q, c.v, rep)
	}
	return err
}

// assigned takes the replica that a look-aside server decided on. The server decides which sessions a draining one
// still serves.
func (c choice) assigned(a *Assigned) error {
	rep, ok := c.v.byID(a.Replica), false
	if rep != nil {
		l, s := liveOf(rep), part.OfRequest(c.q)
		s.Keeper = &l.Replica
		ok = usable(c.q, s, rep, &l.Replica) && c.r.outliers.AdmitsAssigned(l.outlier)
	}
	return c.take(rep, ok, a.Decision)
}

// take decides for one replica, if the request may be given it now.
func (c choice) take(rep *policy.Replica, ok bool, d policy.Decision) error {
	switch {
	case !ok:
		return ErrNoSuchReplica
	case !rep.Connected():
		return ErrNotConnected
	case rep.Full():
		*c.d = policy.Wait(rep)
		return ErrFull
	}
	*c.d = d
	c.d.Replica = rep
	return nil
}

// correct deals with an answer that is not an available replica of this View:
// one that waits, rests on an older View, or breaks the rules. It sees to it
// that no request waits for what has room, or can never have any.
func (c choice) correct() error {
	q, v, d := c.q, c.v, c.d
	want := d.WaitFor
	if d.Replica != nil {
		want = []*policy.Replica{d.Replica} // full, or of an older View, or not to be picked at all
	}
	var room *policy.Replica
	var full []*policy.Replica
	for _, rep := range want {
		if rep != nil {
			rep = v.byID(rep.ID)
		}
		switch {
		case rep == nil || !rep.Connected() || !v.Allowed(q, rep):
		case rep.Full():
			full = append(full, rep)
		case d.Replica != nil: // of an older View
			d.Replica = rep
			return nil
		case room == nil || v.Load(rep) < v.Load(room):
			room = rep
		}
	}
	if room == nil && full == nil { // any will do
		room = v.LeastLoaded(q)
	}
	if room != nil {
		*d = policy.To(room, policy.ReasonLeastLoaded)
		return nil
	}
	if *d = policy.Wait(full...); full != nil {
		return ErrFull
	}
	return c.wait()
}

// wait fills in what a request waits for that takes any replica: all are full that may serve it. Those that drain for
// others are no replicas that any request takes.
func (c choice) wait() error {
	q, v, s := c.q, c.v, part.OfRequest(c.q)
	may := 0
	for _, rep := range v.connected {
		if v.Allowed(q, rep) {
			may++
		}
	}
	switch {
	case may == 0:
		return c.unserved()
	case may == v.open() && s.Keeper == nil && s.Resort < state.Leavers:
		return ErrFull
	}
	for _, rep := range v.connected {
		if v.Allowed(q, rep) {
			c.d.WaitFor = append(c.d.WaitFor, rep)
		}
	}
	return ErrFull
}

// unserved is the reason why no connected replica may serve the request.
func (c choice) unserved() error {
	if c.v.coming(c.q) {
		return ErrConnecting
	}
	for _, rep := range c.v.replicas {
		if c.v.Allowed(c.q, rep) {
			return ErrNotConnected
		}
	}
	return ErrNoSuchReplica
}

// because gives a reason of the Router's and keeps the policy's own as the rule.
func because(d *policy.Decision, why policy.Reason) {
	if d.Reason != policy.ReasonRetry {
		d.Rule = d.Reason
	}
	d.Reason = why
}
