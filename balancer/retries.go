package balancer

import (
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/call"
)

// retries is what a config, with its defaults, says of attempts.
func retries(c *policy.Config) call.Retries {
	return call.Retries{
		Ratio:             c.RetryRatio,
		Floor:             float64(c.RetryFloor),
		Backoff:           c.Backoff,
		QuarantineTTL:     time.Duration(c.QuarantineTTL),
		FirstTokenTimeout: time.Duration(c.FirstTokenTimeout),
	}
}
