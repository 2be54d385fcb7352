package faultproxy

import "time"

// pass waits while nothing may pass; it returns false when the link has ended.
func (l *link) pass() bool {
	for {
		rule := l.proxy.rule.Load()
		if !rule.Blackhole {
			return true
		}
		select {
		case <-rule.changed:
		case <-l.gone:
			return false
		}
	}
}

// slowly waits as long as reading n bytes takes.
func (l *link) slowly(n int) bool {
	rate := l.proxy.rule.Load().BytesPerSecond
	if rate <= 0 {
		return true
	}
	return l.wait(time.Duration(n) * time.Second / time.Duration(rate))
}

// wait lets time pass; it returns false when the link has ended.
func (l *link) wait(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.gone:
		return false
	}
}
