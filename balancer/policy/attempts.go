package policy

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// Defaults and bounds of the attempt fields of [Config].
const (
	DefaultMaxAttempts   = 3
	MaxAttempts          = 10
	DefaultRetryRatio    = 0.2
	DefaultRetryFloor    = 10
	MaxRetryFloor        = 10_000
	DefaultQuarantineTTL = 5 * time.Minute
	MaxQuarantineTTL     = 24 * time.Hour
	MaxFirstTokenTimeout = time.Hour
)

// attemptDefaults writes out the defaults of the attempts.
func (c *Config) attemptDefaults() {
	c.MaxAttempts = cmp.Or(c.MaxAttempts, DefaultMaxAttempts)
	c.RetryRatio = cmp.Or(c.RetryRatio, DefaultRetryRatio)
	c.RetryFloor = cmp.Or(c.RetryFloor, DefaultRetryFloor)
	c.Backoff = c.Backoff.WithDefaults()
	c.QuarantineTTL = cmp.Or(c.QuarantineTTL, Duration(DefaultQuarantineTTL))
}

// checkAttempts checks the fields of attempts, but for the whole numbers.
func (c *Config) checkAttempts() error {
	if r := c.RetryRatio; math.IsNaN(r) || r != -1 && (r < 0 || r > 1) {
		return fmt.Errorf("retry_ratio: %v is neither -1 nor between 0 and 1", r)
	}
	if err := c.Backoff.validate(); err != nil {
		return fmt.Errorf("backoff.%w", err)
	}
	if c.QuarantineTTL > Duration(MaxQuarantineTTL) {
		return fmt.Errorf("quarantine_ttl: %v is more than %v", c.QuarantineTTL, MaxQuarantineTTL)
	}
	if t := c.FirstTokenTimeout; t < 0 || t > Duration(MaxFirstTokenTimeout) {
		return fmt.Errorf("first_token_timeout: %v is not between 0s and %v", t, MaxFirstTokenTimeout)
	}
	return nil
}
