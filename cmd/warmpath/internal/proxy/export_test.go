package proxy

import "time"

// SetPatience sets how long the half-close of a call may take. On a busy machine a test needs more.
func (p *Proxy) SetPatience(d time.Duration) { p.patience = d }
