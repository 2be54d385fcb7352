package policy

import (
	"cmp"
	"time"
)

// Ejection is the config of outlier detection. Its zero value is the default config.
type Ejection struct {
	// Failures is how many calls in a row, failed or late, eject a replica; 0 = 5, Off = no replica is ejected, and
	// SlowStart still counts.
	Failures Limit `json:"failures,omitempty"`
	// LateMin is what is never late; 0 = 5s. Late is ten times what the fleet takes to a first message, and more than it.
	LateMin Duration `json:"late_min,omitempty"`
	// BaseTime is how long the first ejection lasts, each further one twice as long, up to 5m or BaseTime if that is
	// more; 0 = 10s.
	BaseTime Duration `json:"base_time,omitempty"`
	// MaxShare is the part of the replicas that may be ejected; 0 = 0.3. One may always, and one always stays.
	MaxShare float64 `json:"max_share,omitempty"`
	// SlowStart is how long the share of a replica grows that is new or back; 0 = 30s, Off = it does not.
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
