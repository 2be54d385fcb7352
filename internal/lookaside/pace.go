package lookaside

import "time"

// pace is how fast a server answers, and so how long it is waited for: the mean and four deviations, as TCP waits for
// an acknowledgement (RFC 6298), twice as long after each answer that did not come in time. It is used under a lock of
// its owner's.
type pace struct {
	mean, deviation time.Duration
	known           bool
	late            int // answers in a row
}

// took enters how long an answer took.
func (p *pace) took(d time.Duration) {
	if !p.known {
		p.mean, p.deviation, p.known = d, d/2, true
		return
	}
	off := d - p.mean
	p.mean += off / 8
	p.deviation += (max(off, -off) - p.deviation) / 4
}

// patience bounds how much sooner than the deadline an answer is given up.
const patience = 2

// limit is how long to wait for the next answer, at most so long.
func (p *pace) limit(longest time.Duration) time.Duration {
	if !p.known {
		return longest
	}
	d := max(p.mean+4*p.deviation, longest/patience)
	return min(d<<min(p.late, 2*patience), longest)
}
