package policy

import (
	"cmp"
	"time"
)

// Ejection is the config of outlier detection. Its zero value is the default config.
type Ejection struct {
	// Failures is how many calls in a row, failed or late, eject a replica; 0 = 5, Off = no replica is ejected.
	// SlowStart does not depend on it.
	Failures Limit `json:"failures,omitempty"`
	// LateMin is a time to the first message that is never late; 0 = 5s. Late is more than that, and more than ten times
	// the fleet's usual time.
	LateMin Duration `json:"late_min,omitempty"`
	// BaseTime is how long the first ejection lasts; 0 = 10s. Each further one lasts twice as long, up to the larger of
	// 5m and BaseTime.
	BaseTime Duration `json:"base_time,omitempty"`
	// MaxShare is the share of the replicas that may be ejected; 0 = 0.3. One replica always may, and one always stays.
	MaxShare float64 `json:"max_share,omitempty"`
	// SlowStart is the time in which the share of a new or returned replica grows to the full one; 0 = 30s, Off = none.
	SlowStart Duration `json:"slow_start,omitempty"`
}

// WithDefaults returns the config with every default written out.
func (e Ejection) WithDefaults() Ejection {
	e.Failures = cmp.Or(e.Failures, 5)
	e.LateMin = cmp.Or(e.LateMin, Duration(5*time.Second))
	e.BaseTime = cmp.Or(e.BaseTime, Duration(10*time.Second))
	e.MaxShare = cmp.Or(e.MaxShare, 0.3)
	e.SlowStart = cmp.Or(e.SlowStart, Duration(30*time.Second))
	return e
}

// validate checks the bounds of every field. The error names it.
func (e *Ejection) validate() error {
	full := e.WithDefaults()
	const least, most = Duration(time.Millisecond), Duration(time.Hour)
	return cmp.Or(
		whole("ejection.failures", e.Failures, 1000),
		within("ejection.late_min", full.LateMin, least, most),
		within("ejection.base_time", full.BaseTime, least, most),
		within("ejection.max_share", full.MaxShare, 0, 1),
		mayBeOff("ejection.slow_start", e.SlowStart, most),
	)
}
