package outlier

import (
	"cmp"
	"time"
)

// Config is when a replica is ejected although it is connected, and how it comes back. The zero value is off.
type Config struct {
	// Failures is how much evidence in a row ejects: one for each call that failed, and one for each time that a call has
	// waited the longest that counts as timely. 0 = no replica is ejected.
	Failures int
	// LateFactor: a first message is late after so many times what the fleet takes; LateMin: never earlier than that.
	// Where the fleet's own times are spread wide, late is beyond nearly all of them.
	LateFactor float64
	LateMin    time.Duration
	// BaseTime is how long the first ejection lasts, MaxTime the longest.
	BaseTime, MaxTime time.Duration
	// MaxShare is the part of the connected replicas that may be ejected; one may always, one always stays.
	MaxShare float64
	// SlowStart is how long the share of a new or returned replica grows; 0 = it has its full share at once.
	SlowStart time.Duration
}

// Default returns the values of a config that sets none.
func Default() Config {
	return Config{
		Failures: 5, LateFactor: 10, LateMin: 5 * time.Second,
		BaseTime: 10 * time.Second, MaxTime: 5 * time.Minute, MaxShare: 0.3, SlowStart: 30 * time.Second,
	}
}

func (c Config) withDefaults() Config {
	d := Default()
	return Config{
		Failures: c.Failures, LateFactor: cmp.Or(c.LateFactor, d.LateFactor), LateMin: cmp.Or(c.LateMin, d.LateMin),
		BaseTime: cmp.Or(c.BaseTime, d.BaseTime), MaxTime: cmp.Or(c.MaxTime, d.MaxTime),
		MaxShare: cmp.Or(c.MaxShare, d.MaxShare), SlowStart: c.SlowStart,
	}
}

// ejection is how long an ejection lasts after so many others.
func (c *Config) ejection(times int) time.Duration {
	return min(c.BaseTime<<min(max(times, 0), 20), c.MaxTime)
}
