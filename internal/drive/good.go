package drive

import "time"

// What a request must keep to count as good.
const (
	GoodTTFT = 5 * time.Second
	GoodTPOT = 100 * time.Millisecond
)

// Good reports whether a request that took this long was good.
func Good(ttft, tpot time.Duration) bool { return ttft <= GoodTTFT && tpot <= GoodTPOT }
