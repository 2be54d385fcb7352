package routing

// A VerdictState is what others have found of a replica.
type VerdictState uint8

// The states.
const (
	VerdictWell    VerdictState = iota // nothing against it
	VerdictSuspect                     // one of them has something against it
	VerdictEjected                     // several have
)

// A Verdict is what a look-aside server tells of a replica, from what all its clients find.
type Verdict struct {
	ID    string
	State VerdictState
	// Term numbers the states of this replica; a Finding says under which it was found.
	Term uint64
	// Turn says that we may try it, one request at a time.
	Turn bool
	// Well is ours: a trial was answered, and the verdict is to be lifted.
	Well bool
}

// A FindingKind is what our own calls say of a replica.
type FindingKind uint8

// The kinds.
const (
	FindingFailing FindingKind = iota // calls failed
	FindingLate                       // calls are not answered
	FindingTrying                     // a trial is under way
	FindingWell                       // a trial was answered
)

// A Finding is to be told to others.
type Finding struct {
	ID   string
	Kind FindingKind
	Term uint64
}

// Findings returns what our own calls say of replicas that is worth telling others. O(replicas) where there is any.
func (r *Router) Findings() []Finding {
	if !r.judges {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.look(r.opts.Now())
	if r.wards.out == 0 {
		return nil
	}
	var all []Finding
	for _, rep := range r.view.Load().fleet.replicas {
		h := &rep.live.health
		f := Finding{ID: rep.ID, Term: h.told.Term}
		switch {
		case h.told.State != VerdictWell && h.told.Well:
			f.Kind = FindingWell
		case h.told.State != VerdictWell && h.trials > 0 && h.told.Turn && h.spent != h.told.Term:
			f.Kind = FindingTrying
		case h.cond >= OnTrial && h.cause != CauseTold: // else it is what others said
			f.Term = h.found
			if h.cause == CauseLate {
				f.Kind = FindingLate
			}
		default:
			continue
		}
		all = append(all, f)
	}
	return all
}

// SetVerdicts replaces what others have found. A replica against which they have something gets nothing but, where it is our
// turn, one request at a time. One that they find well again is so for us too, and starts slowly; one that is named well
// has a Term. Those not named stay as they were in the Term that was told last, and nothing is against them any more.
// Unknown ids are ignored. No more than MaxShare of the fleet is left alone for what others and we ourselves have found
// together. Nothing happens where nobody is ejected. O(replicas).
func (r *Router) SetVerdicts(told []Verdict) {
	if !r.judges {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.take(told, true)
}

// DropVerdicts is for who no longer hears of them: who was left alone since others said so is on trial.
func (r *Router) DropVerdicts() {
	if !r.judges {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.take(nil, false)
}

// take puts verdicts into force. lifted: those that are no more were taken back. Called with mu held.
func (r *Router) take(told []Verdict, lifted bool) {
	v := r.view.Load()
	now := r.opts.Now()
	named := make(map[*live]*Verdict, len(told))
	for i := range told {
		if rep := v.ByID(told[i].ID); rep != nil {
			named[rep.live] = &told[i]
		}
	}
	changed, n := false, len(v.fleet.replicas)
	left := min(max(int(r.opts.Ejection.MaxShare*float64(n)), 1), n-1)
	for _, rep := range v.fleet.replicas { // those that are out by our own judgement are part of it
		h := &rep.live.health
		if told := named[rep.live]; h.cond >= OnTrial && h.told.State == VerdictWell && (told == nil || told.State == VerdictWell) {
			left--
		}
	}
	for _, rep := range v.fleet.replicas {
		l := rep.live
		was := l.health.told
		next := Verdict{Term: was.Term}
		if n := named[l]; n != nil {
			next = *n
			next.Well = was.Well && was.Term == n.Term
			if left <= 0 {
				next.State = VerdictWell
			}
			if next.State != VerdictWell {
				left--
			}
		}
		if !lifted {
			next.Term = 0
		}
		if was == next {
			continue
		}
		changed = true
		if was.State == VerdictWell && next.State != VerdictWell && l.health.cond < OnTrial {
			r.wards.ejected[CauseTold]++
		}
		r.modify(l, func(h *health) {
			h.told = next
			if !lifted {
				h.found, h.spent = 0, 0
			}
			switch {
			case was.State == VerdictWell || next.State != VerdictWell:
			case lifted:
				h.begin(now, r.opts.Ejection.SlowStart)
			case h.cond < OnTrial && !was.Well:
				h.cond, h.cause, h.since = OnTrial, CauseTold, now
			}
		})
	}
	if changed {
		r.wards.due = now
		r.requeue(v)
	}
}
