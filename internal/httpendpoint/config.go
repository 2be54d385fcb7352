package httpendpoint

import (
	"cmp"
	"fmt"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Config is the endpoint's part of the server's config; a field that is zero has its default. Read once.
type Config struct {
	// Listen is the address to listen on; empty = there is no HTTP endpoint.
	Listen string `json:"listen,omitempty"`
	// MaxBodyBytes bounds how much of a body is read, the rest does not count; 1 KiB to 256 MiB, default 1 MiB. There are
	// at most as many connections as have 1 GiB of bodies.
	MaxBodyBytes int `json:"max_body_bytes,omitempty"`
	// ReadTimeout is how long the head of a request may take, and then its body, of which the part that arrived counts;
	// 10ms to 1h, default 5s.
	ReadTimeout policy.Duration `json:"read_timeout,omitempty"`
}

// WithDefaults returns a copy with every default filled in.
func (c Config) WithDefaults() Config {
	c.MaxBodyBytes = cmp.Or(c.MaxBodyBytes, 1<<20)
	c.ReadTimeout = cmp.Or(c.ReadTimeout, policy.Duration(5*time.Second))
	return c
}

// Validate checks every field but Listen. The error names it.
func (c Config) Validate() error {
	c = c.WithDefaults()
	if n := c.MaxBodyBytes; n < 1<<10 || n > 1<<28 {
		return fmt.Errorf("max_body_bytes: %d is not between %d and %d", n, 1<<10, 1<<28)
	}
	if d := time.Duration(c.ReadTimeout); d < 10*time.Millisecond || d > time.Hour {
		return fmt.Errorf("read_timeout: %v is not between 10ms and 1h", d)
	}
	return nil
}
