package router

import "github.com/warmpath/warmpath/balancer/policy"

// Honour reserves the replica that a look-aside server decided on, in the place of the policy. d is what
// was decided but for the replica, which id names. The policy learns the route as it does its own, if the request was
// prepared. Nothing is reserved, and the error is the reason, where the request may not be given to the replica now:
// it is not in the fleet (ErrNoSuchReplica), its connection is not ready (ErrNotConnected), or it is full (ErrFull).
func (r *Router) Honour(q *policy.Request, id string, d policy.Decision, b *Reservation) error {
	if err := r.honour(q, id, d, b); err != nil {
		return err
	}
	r.routed(q, b)
	return nil
}

func (r *Router) honour(q *policy.Request, id string, d policy.Decision, b *Reservation) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.attend(q)
	v := r.view.Load()
	r.queue.tick()
	rep := v.ByID(id)
	q.State().AnyModel, q.State().Plain = v.anyModel(q), !r.Decides(q)
	if rep != nil {
		q.State().Keeper = rep.State() // the server decides which sessions a draining replica still serves
	}
	switch {
	case b.held:
		return ErrHeld
	case r.queue.closed:
		return ErrClosed
	case rep == nil || !v.usable(q, rep) || !r.outliers.AdmitsAssigned(liveOf(rep).outlier):
		return ErrNoSuchReplica
	case !rep.Connected():
		return ErrNotConnected
	case rep.Full():
		return ErrFull
	}
	d.Replica = rep
	if q.State().Attempt > 0 {
		because(&d, policy.ReasonRetry)
	}
	b.Decision = d
	r.reserve(q, v, b, now)
	return nil
}

// PromptHashes returns the hashed blocks of a request that was prepared, nil where the policy has made none.
func (r *Router) PromptHashes(q *policy.Request) *policy.Hashed {
	b, ok := q.Prepared.(blocks)
	if !ok || q.State().Prepared != any(r) || q.Pin != "" {
		return nil
	}
	return b.Hashed()
}
