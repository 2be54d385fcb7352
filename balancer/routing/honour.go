package routing

// Honour books the replica that somebody else has decided on in the place of the policy: a look-aside server. d is what
// was decided but for the replica, which id names. The policy learns the route as it does its own, if the request was
// prepared. Nothing is booked, and the error says why, where the request may not be given to the replica now: it is not
// in the fleet (ErrNoSuchReplica), its connection is not ready (ErrNotConnected), or it is full (ErrFull).
func (r *Router) Honour(q *Request, id string, d Decision, b *Booking) error {
	if err := r.honour(q, id, d, b); err != nil {
		return err
	}
	r.routed(q, b)
	return nil
}

func (r *Router) honour(q *Request, id string, d Decision, b *Booking) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.attend(q)
	v := r.view.Load()
	r.tick(v)
	rep := v.ByID(id)
	q.anyModel, q.unasked = v.anyModel(q), !r.Decides(q)
	q.keeper = rep // who decided knows whom a draining replica still serves, and how slowly one starts
	switch {
	case b.held:
		return ErrHeld
	case r.closed:
		return ErrClosed
	case rep == nil || !v.usable(q, rep) || !r.outliers.AdmitsAssigned(rep.live.outlier):
		return ErrNoSuchReplica
	case !rep.Connected():
		return ErrNotConnected
	case rep.Full():
		return ErrFull
	}
	d.Replica = rep
	if q.attempt > 0 {
		d.because(ReasonRetry)
	}
	b.Decision = d
	r.book(q, v, b, now)
	return nil
}

// A PromptHasher is a Policy that cuts prompts into hashed blocks. PromptHashes returns those of a request that was
// prepared, which are not written again; nil where there are none. It is called by the goroutine of the call.
type PromptHasher interface{ PromptHashes(q *Request) *Hashed }

// PromptHashes returns the hashed blocks of a request that was prepared, nil where the policy has made none.
func (r *Router) PromptHashes(q *Request) *Hashed {
	h, ok := r.opts.Policy.(PromptHasher)
	if !ok || q.router != r || q.Prepared == nil || q.Pin != "" {
		return nil
	}
	return h.PromptHashes(q)
}

// TriedIDs returns the ids of the replicas at which earlier attempts of the call failed. Read only.
func (q *Request) TriedIDs() []string { return q.tried }
