package drive

import (
	"cmp"
	"time"
)

// What a request must keep to count as good by default.
const (
	GoodTTFT = 5 * time.Second
	GoodTPOT = 100 * time.Millisecond
)

// Targets are what a request must keep to count as good; 0 means GoodTTFT or GoodTPOT.
type Targets struct{ TTFT, TPOT time.Duration }

// Full are the targets with the defaults filled in.
func (t Targets) Full() Targets { return Targets{cmp.Or(t.TTFT, GoodTTFT), cmp.Or(t.TPOT, GoodTPOT)} }

// Good reports whether a request that took this long was good.
func (t Targets) Good(ttft, tpot time.Duration) bool {
	t = t.Full()
	return ttft <= t.TTFT && tpot <= t.TPOT
}
