package outlier

import (
	"maps"
	"time"
)

// accused is the evidence against a replica by principal.
type accused struct {
	given   map[string]int // evidence in a row by principal, at most the threshold
	accuser string         // the ejection rests on it alone, and others are active; "" = it does not
	muted   map[string]mute
}

// A mute is a principal whose evidence weighs nothing for a time, since another one's call was answered.
type mute struct {
	until time.Time
	times int
}

const (
	activeFor     = time.Minute
	maxPrincipals = 1000 // remembered by a Detector, and by a replica
)

// principals is when each principal was last active. The Detector's lock guards it.
type principals map[string]time.Time

// note remembers that a principal is active.
func (p principals) note(principal string, now time.Time) {
	if principal == "" {
		return
	}
	if _, known := p[principal]; !known && len(p) >= maxPrincipals {
		maps.DeleteFunc(p, func(_ string, at time.Time) bool { return now.Sub(at) >= activeFor })
		if len(p) >= maxPrincipals {
			return
		}
	}
	p[principal] = now
}

// weigh is how much n pieces of evidence of a principal weigh.
func (r *Replica) weigh(principal string, n, most int, now time.Time) int {
	if principal == "" {
		return n
	}
	if now.Before(r.muted[principal].until) {
		return 0
	}
	n = min(n, most-r.given[principal])
	if n <= 0 || r.given[principal] == 0 && len(r.given) >= maxPrincipals {
		return 0
	}
	if r.given == nil {
		r.given = make(map[string]int)
	}
	r.given[principal] += n
	return n
}

// sole is the principal on which an ejection rests alone, while others are active; else "".
func (p principals) sole(given map[string]int, now time.Time) string {
	if len(given) != 1 {
		return ""
	}
	var only string
	for only = range given {
	}
	for other, at := range p {
		if other != only && now.Sub(at) < activeFor {
			return only
		}
	}
	return ""
}

// overrule brings a replica back that one principal alone had ejected, and mutes the principal.
func (s *states) overrule(r *Replica, now time.Time) {
	if r.muted == nil {
		r.muted = make(map[string]mute)
	}
	maps.DeleteFunc(r.muted, func(_ string, m mute) bool { return now.Sub(m.until) >= s.cfg.MaxTime })
	if m, known := r.muted[r.accuser]; known || len(r.muted) < maxPrincipals {
		r.muted[r.accuser] = mute{now.Add(s.cfg.ejection(m.times)), m.times + 1}
	}
	s.recover(r, now)
}
