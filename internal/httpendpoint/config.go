package httpendpoint

import (
	"cmp"
	"fmt"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
)

// Config is the endpoint's part of the server's config; a field that is zero has its default. Read once.
type Config struct {
	// Listen is the address to listen on; empty = there is no HTTP endpoint.
	Listen string `json:"listen,omitempty"`
	// SessionHeader names the header with the session, in any case, with - and _ alike; default x-session-id.
	// Those of agents are read behind it.
	SessionHeader string `json:"session_header,omitempty"`
	// MaxBodyBytes bounds how much of a body is read, the rest does not count; 1 KiB to 256 MiB, default 1 MiB.
	MaxBodyBytes int `json:"max_body_bytes,omitempty"`
	// ReadTimeout is how long the head of a request may take, and then its body, of which the part that arrived counts;
	// 10ms to 1h, default 5s.
	ReadTimeout policy.Duration `json:"read_timeout,omitempty"`
	// MaxConnections bounds the connections, of which one host may have half; more are closed at once; default 1,000.
	MaxConnections int `json:"max_connections,omitempty"`
}

// WithDefaults returns a copy with every default filled in.
func (c Config) WithDefaults() Config {
	c.SessionHeader = cmp.Or(c.SessionHeader, "x-session-id")
	c.MaxBodyBytes = cmp.Or(c.MaxBodyBytes, 1<<20)
	c.ReadTimeout = cmp.Or(c.ReadTimeout, policy.Duration(5*time.Second))
	c.MaxConnections = cmp.Or(c.MaxConnections, 1000)
	return c
}

// Validate checks every field but Listen. The error names it.
func (c Config) Validate() error {
	c = c.WithDefaults()
	if _, err := requestkey.NewSessionKeys(c.SessionHeader); err != nil {
		return fmt.Errorf("session_header: %q cannot be the name of a header", c.SessionHeader)
	}
	if n := c.MaxBodyBytes; n < 1<<10 || n > 1<<28 {
		return fmt.Errorf("max_body_bytes: %d is not between %d and %d", n, 1<<10, 1<<28)
	}
	if n := c.MaxConnections; n < 1 || n > 1<<20 {
		return fmt.Errorf("max_connections: %d is not between 1 and %d", n, 1<<20)
	}
	if d := time.Duration(c.ReadTimeout); d < 10*time.Millisecond || d > time.Hour {
		return fmt.Errorf("read_timeout: %v is not between 10ms and 1h", d)
	}
	return nil
}
