package router

import (
	"log/slog"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/state"
)

// A choice is one request over one view, with the decision to fill in. The Router's mutex is held while its methods
// run.
type choice struct {
	r *Router
	q *policy.Request
	v *view
	d *policy.Decision
}

// policy returns what decides: the policy, or Options.Plain.
func (c choice) policy() *policy.Policy { return c.r.Rollout.policy(c.q) }

// decide fills in the decision.
func (c choice) decide() error {
	r, q, v, d := c.r, c.q, c.v, c.d
	v.narrow(q) // for a fleet that has changed since
	q.State().Plain = !r.Rollout.Decides(q)
	switch {
	case r.queue.closed:
		*d = policy.Decision{}
		return ErrClosed
	case len(v.connected) == 0:
		*d = policy.Decision{}
		return ErrNotConnected
	case q.Pin != "":
		if err := c.pinned(); err != nil {
			return err
		}
		if r.own.Routed != nil && !q.State().Plain {
			d.MatchedTokens = matched(&r.opts.Policy, q, v, d.Replica)
		}
	default:
		q.State().AnyModel = v.anyModel(q)
		r.Load.Expire()
		q.State().Keeper = nil
		if len(v.leaving) > 0 {
			q.State().Keeper = r.Fleet.keeper(q, v)
		}
		if err := c.ask(); err != nil {
			if r.outliers.AllHealthy() && len(v.leaving) == 0 {
				return err
			}
			if err := c.askAll(); err != nil {
				return err
			}
		}
	}
	if q.State().Attempt > 0 {
		because(d, policy.ReasonRetry)
	}
	return nil
}

// ask calls the policy and corrects it.
func (c choice) ask() error {
	r, q, v, d := c.r, c.q, c.v, c.d
	p := c.policy()
	if p.Preview != nil && q.State().Query {
		*d = p.Preview(q, v)
	} else {
		*d = p.Choose(q, v)
		d.State().Chosen = r.own.Withdrawn != nil && d.Replica != nil && !q.State().Plain
	}
	if d.Replica == nil || v.current(d.Replica) != d.Replica || !v.Available(q, d.Replica) {
		picked := *d
		err := c.correct()
		if picked.Replica != nil && (err != nil || d.Replica.ID != picked.Replica.ID) {
			c.corrected(&picked)
		}
		return err
	}
	return nil
}

// corrected notes that a pick of the policy is not used. Called with mu held.
func (c choice) corrected(picked *policy.Decision) {
	withdrawn(&c.r.own, c.q, picked)
	rep := c.v.current(picked.Replica)
	if rep != nil && rep.Connected() && c.v.Allowed(c.q, rep) {
		return // only full: the request waits for it
	}
	if c.r.Counts.Corrections.Add(1) == 1 {
		slog.Warn("warmpath: the policy picks a replica that the request may not be given: "+
			"the least loaded is taken instead; a policy picks among those that View.Available reports (logged once)",
			"policy", c.policy().Name, "replica", picked.Replica.ID)
	}
}

// askAll asks again with those that are passed over as long as there are others: those that are starting slowly and,
// where no other could ever serve the request, those that say that they drain, and then those that are ejected.
// Called with mu held.
func (c choice) askAll() error {
	err := c.askWith(outlier.SlowStart)
	if err == nil || err == ErrFull {
		return err
	}
	c.q.State().LastResort = true
	defer func() { c.q.State().LastResort = false }()
	if err = c.askWith(outlier.SlowStart); err == nil || err == ErrFull {
		return err
	}
	return c.askWith(outlier.Ejected)
}

func (c choice) askWith(worst outlier.State) error {
	r, v := c.r, c.v
	for _, rep := range v.connected {
		if s, _ := r.outliers.State(liveOf(rep).outlier); s != outlier.Healthy && s <= worst {
			liveOf(rep).Set(state.Barred, false)
		}
	}
	defer func() {
		for _, rep := range v.connected {
			r.outliers.Readmit(liveOf(rep).outlier)
		}
	}()
	return c.ask()
}

func (c choice) pinned() error {
	q, v, d := c.q, c.v, c.d
	rep := v.ByID(q.Pin)
	*d = policy.Decision{}
	switch {
	case rep == nil || rep.Draining || excluded(q, rep):
		return ErrNoSuchReplica
	case !rep.Connected():
		return ErrNotConnected
	case rep.Full():
		*d = policy.Wait(rep)
		return ErrFull
	}
	*d = policy.To(rep, policy.ReasonPinned)
	return nil
}

// correct deals with an answer that is not an available replica of this View:
// one that waits, rests on an older View, or breaks the rules. It sees to it
// that no request waits for what has room, or can never have any.
func (c choice) correct() error {
	q, v, d := c.q, c.v, c.d
	want := d.WaitFor
	if d.Replica != nil {
		rep := v.current(d.Replica)
		if rep != nil && v.Available(q, rep) {
			d.Replica = rep
			return nil
		}
		want = []*policy.Replica{rep} // full, or not to be picked at all
	}
	room, full := c.split(want)
	if room == nil && full == nil { // any will do
		room = v.LeastLoaded(q)
	}
	if room != nil {
		*d = policy.To(room, policy.ReasonLeastLoaded)
		return nil
	}
	*d = policy.Wait(full...)
	plain := len(q.Exclude) == 0 && len(q.Allow) == 0 && (q.Model == "" || q.State().AnyModel) &&
		q.State().Keeper == nil && v.shared.outliers.AllHealthy()
	if full != nil || v.open() > 0 && plain {
		return ErrFull
	}
	_, full = c.split(v.connected)
	switch len(full) {
	case 0:
		return c.unserved()
	case v.open(): // any, after all, unless some of them drain
		if q.State().Keeper != nil || q.State().LastResort {
			d.WaitFor = full
		}
	default:
		d.WaitFor = full
	}
	return ErrFull
}

// split looks at the replicas that a request would wait for: the least loaded that has room
// now, and the full ones whose room it may have later.
func (c choice) split(want []*policy.Replica) (room *policy.Replica, full []*policy.Replica) {
	for _, rep := range want {
		if rep != nil {
			rep = c.v.current(rep)
		}
		switch {
		case rep == nil || !rep.Connected() || !c.v.Allowed(c.q, rep):
		case rep.Full():
			full = append(full, rep)
		case room == nil || c.v.Load(rep) < c.v.Load(room):
			room = rep
		}
	}
	return room, full
}

// unserved is the reason why no connected replica may serve the request.
func (c choice) unserved() error {
	for _, rep := range c.v.fleet.replicas {
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
