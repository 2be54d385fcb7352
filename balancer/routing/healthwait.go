package routing

import "time"

// queued are bookings that wait for their first message, the oldest pick first.
type queued struct{ first, last *Booking }

// watch notes what is to be known of a booking that is being made, with so much booked before it; now as for choose.
// Called with mu held.
func (r *Router) watch(q *Request, b *Booking, l *live, before int64, now time.Time) {
	if !r.judges {
		return
	}
	b.trial = r.wards.unwell > 0 && l.health.out()
	q.trial, b.Decision.trial = b.trial, b.trial
	if b.trial {
		b.turn = l.health.turn
		l.health.trials++
		r.wards.trials++
	}
	if q.Answer == AnswerUnseen {
		if b.trial {
			l.health.begun = r.opts.Now()
		}
		b.picked = time.Time{}
	} else {
		// Requests under way count too: a replica that is given more than others is not late for it.
		before += l.foreign.Load()
		ahead := before&tokenMask + paceOverhead*(before>>tokenBits)
		if now.IsZero() {
			now = r.opts.Now()
		}
		r.enlist(b, q, now, float64(b.prefill+ahead)+paceOverhead)
	}
}

// enlist enters a booking that was made just now. Called with mu held.
func (r *Router) enlist(b *Booking, q *Request, now time.Time, work float64) {
	b.picked, b.work, b.kind = now, work, int8(q.Answer-AnswerMessage)
	b.waits, b.heeded, b.answered = true, false, false
	q.picked, q.work = now, work
	w := &b.replica.live.health.waiting
	if b.prev = w.last; b.prev != nil {
		b.prev.next = b
	} else {
		w.first = b
	}
	w.last = b
}

// Watched reports whether Answered tells how long the first message took. It is for who made the pick.
func (b *Booking) Watched() bool { return !b.picked.IsZero() }

// endWait takes a booking out. Called with mu held.
func (b *Booking) endWait() {
	if !b.waits {
		return
	}
	b.waits = false
	w := &b.replica.live.health.waiting
	if b.prev != nil {
		b.prev.next = b.next
	} else {
		w.first = b.next
	}
	if b.next != nil {
		b.next.prev = b.prev
	} else {
		w.last = b.prev
	}
	b.prev, b.next = nil, nil
}

// Answered says that the first response message has come: PrefillDone, and what it tells of the replica. It may come
// after Release. It returns how long the message took since the pick, 0 where the request is not watched. Later calls
// do nothing.
func (b *Booking) Answered() time.Duration {
	r := b.router
	if r == nil {
		return 0
	}
	if !r.judges || b.picked.IsZero() {
		r.mu.Lock()
		defer r.mu.Unlock()
		b.dropPrefill()
		if b.endTrial() {
			r.spoke(b.replica.live, time.Time{}, r.opts.Now(), true, true)
		}
		return 0
	}
	now := r.opts.Now()
	took := max(now.Sub(b.picked), 1)
	w, t := logs(b.work, took)
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.answered {
		return took
	}
	trial := b.trial
	b.answered = true
	b.dropPrefill()
	b.endWait()
	b.endTrial()
	l := b.replica.live
	late := l.health.limits[b.kind].passed(b.work, took)
	l.health.paces[b.kind].add(w, t)
	r.spoke(l, b.picked, now, !late, trial)
	if late && !b.heeded {
		r.strike(b.replica, b.picked, now, 1, true, trial)
	}
	return took
}

func (l *live) isOverdue(now time.Time) bool {
	n, _ := l.overdue(now, 1)
	return n > 0
}

// overdue is how much evidence there is in the calls that wait on a replica: one for each time that the longest timely
// wait has passed since the call was picked, or since the replica last answered anybody. It counts no further than most.
func (l *live) overdue(now time.Time, most int) (n int, since time.Time) {
	const glance = 256
	h := &l.health
	if !h.limits[0].known && !h.limits[1].known {
		return 0, since
	}
	least := max(h.limits[0].least, h.limits[1].least)
	b := h.waiting.first
	for range glance {
		if b == nil || n >= most {
			break
		}
		from := b.picked
		if h.heard.After(from) {
			from = h.heard
		}
		wait := now.Sub(from)
		if wait < least { // nor has anybody behind it waited as long
			break
		}
		if !b.heeded {
			if times := h.limits[b.kind].times(b.work, wait); times > 0 {
				if n == 0 {
					since = from
				}
				n += min(times, most)
			}
		}
		b = b.next
	}
	return n, since
}
