package balancer

import (
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/channel"
)

// retries is what a config, with its defaults, says of attempts.
func retries(c *policy.Config) channel.Retries {
	return channel.Retries{
		Ratio:             c.RetryRatio,
		Floor:             float64(c.RetryFloor),
		Backoff:           c.Backoff,
		QuarantineTTL:     time.Duration(c.QuarantineTTL),
		FirstTokenTimeout: time.Duration(c.FirstTokenTimeout),
	}
}
