package policy

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/warmpath/warmpath/internal/outlier"
)

// Bounds of [Ejection].
const (
	MaxEjectionFailures = 1000
	MaxLateFactor       = 1000
	MaxEjectionTime     = time.Hour
)

// Ejection is the config of outlier detection. Its zero value is the default config.
type Ejection struct {
	// Disabled ejects no replica. SlowStart still counts.
	Disabled bool `json:"disabled,omitempty"`
	// Failures is how many calls in a row, failed or late, eject a replica; 0 = 5.
	Failures int `json:"failures,omitempty"`
	// LateFactor is how many times what the fleet takes to a first message is late; 0 = 10, at least 2.
	LateFactor float64 `json:"late_factor,omitempty"`
	// LateMin is what is never late; 0 = 5s.
	LateMin Duration `json:"late_min,omitempty"`
	// BaseTime is how long the first ejection lasts, each further one twice as long, up to MaxTime; 0 = 10s and 5m.
	BaseTime Duration `json:"base_time,omitempty"`
	MaxTime  Duration `json:"max_time,omitempty"`
	// MaxShare is the part of the replicas that may be ejected; 0 = 0.3. One may always, and one always stays.
	MaxShare float64 `json:"max_share,omitempty"`
	// SlowStart is how long the share of a replica grows that is new or back; 0 = 30s, negative = it does not.
	SlowStart Duration `json:"slow_start,omitempty"`
}

// WithDefaults returns the config with every default written out.
func (e Ejection) WithDefaults() Ejection {
	d := outlier.Default()
	e.Failures = cmp.Or(e.Failures, d.Failures)
	e.LateFactor = cmp.Or(e.LateFactor, d.LateFactor)
	e.LateMin = cmp.Or(e.LateMin, Duration(d.LateMin))
	e.BaseTime = cmp.Or(e.BaseTime, Duration(d.BaseTime))
	e.MaxTime = cmp.Or(e.MaxTime, max(Duration(d.MaxTime), e.BaseTime))
	e.MaxShare = cmp.Or(e.MaxShare, d.MaxShare)
	e.SlowStart = cmp.Or(e.SlowStart, Duration(d.SlowStart))
	return e
}

// validate checks the bounds of every field. The error names it.
func (e *Ejection) validate() error {
	full := e.WithDefaults()
	switch {
	case e.Failures < 0 || e.Failures > MaxEjectionFailures:
		return fmt.Errorf("failures: %d is not between 0 and %d", e.Failures, MaxEjectionFailures)
	case !(full.LateFactor >= 2 && full.LateFactor <= MaxLateFactor):
		return fmt.Errorf("late_factor: %v is not between 2 and %d", e.LateFactor, MaxLateFactor)
	case !(full.MaxShare >= 0 && full.MaxShare <= 1):
		return fmt.Errorf("max_share: %v is not between 0 and 1", e.MaxShare)
	case full.MaxTime < full.BaseTime:
		return errors.New("max_time: it is less than base_time")
	case full.SlowStart > Duration(MaxEjectionTime):
		return fmt.Errorf("slow_start: %v is more than %v", e.SlowStart, MaxEjectionTime)
	}
	for _, f := range []struct {
		name  string
		value Duration
	}{{"late_min", full.LateMin}, {"base_time", full.BaseTime}, {"max_time", full.MaxTime}} {
		if f.value < Duration(time.Millisecond) || f.value > Duration(MaxEjectionTime) {
			return fmt.Errorf("%s: %v is not between 1ms and %v", f.name, f.value, MaxEjectionTime)
		}
	}
	return nil
}
