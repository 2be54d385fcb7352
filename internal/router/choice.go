package router

import (
	"log/slog"

	"github.com/warmpath/warmpath/balancer/policy"
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
	q.State().Plain = !r.Rollout.Decides(q)
	switch {
	case r.queue.closed:
		*d = policy.Decision{}
		return ErrClosed
	case len(v.connected) == 0:
		*d = policy.Decision{}
		return ErrNotConnected
	case q.Pin != "":
		return c.pinned()
	}
	r.Load.Expire()
	q.State().AnyModel, q.State().Keeper = v.anyModel(q), r.Fleet.keeper(q, v)
	err := c.ask()
	if err == nil || r.outliers.AllHealthy() && len(v.leaving) == 0 {
		return err
	}
	return c.resort()
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
	if d.Replica == nil || !v.has(d.Replica) || !v.Available(q, d.Replica) {
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
	rep := c.v.byID[picked.Replica.ID]
	if rep != nil && rep.Connected() && c.v.Allowed(c.q, rep) {
		return // only full: the request waits for it
	}
	if c.r.Counts.Corrections.Add(1) == 1 {
		slog.Warn("warmpath: the policy picks a replica that the request may not be given: "+
			"the least loaded is taken instead; a policy picks among those that View.Available reports (logged once)",
			"policy", c.policy().Name, "replica", picked.Replica.ID)
	}
}

// resort asks again with those that are passed over as long as there are others: those that are starting slowly and,
// where no other could ever serve the request, those that report that they drain, and then those that are ejected.
func (c choice) resort() (err error) {
	s := c.q.State()
	defer func() { s.Resort = state.NoResort }()
	for s.Resort = state.SlowStarters; s.Resort <= state.Ejected; s.Resort++ {
		if err = c.ask(); err == nil || err == ErrFull {
			break
		}
	}
	return err
}

func (c choice) pinned() error {
	r, q, v, d := c.r, c.q, c.v, c.d
	rep := v.byID[q.Pin]
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
	if r.own.Routed != nil && !q.State().Plain {
		d.MatchedTokens = matched(&r.opts.Policy, q, v, rep)
	}
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
			rep = v.byID[rep.ID]
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
	q, v := c.q, c.v
	may := 0
	for _, rep := range v.connected {
		if v.Allowed(q, rep) {
			may++
		}
	}
	switch {
	case may == 0:
		return c.unserved()
	case may == v.open() && q.State().Keeper == nil && q.State().Resort < state.Leavers:
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
