package httpendpoint

import (
	"fmt"
	"time"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
)

// Config is what the server's config says of the door. Read once.
type Config struct {
	// Listen is the address to listen on; empty = there is no such door.
	Listen string `json:"listen,omitempty"`
	// SessionHeader names the header with the session; case does not matter, and - and _ are equal.
	SessionHeader string `json:"session_header,omitempty"`
	// MaxBodyBytes bounds how much of a body is read. What is beyond it does not count.
	MaxBodyBytes int `json:"max_body_bytes,omitempty"`
	// HeaderTimeout is how long the head of a request may take.
	HeaderTimeout policy.Duration `json:"header_timeout,omitempty"`
	// BodyTimeout is how long its body may take. What has not come by then does not count.
	BodyTimeout policy.Duration `json:"body_timeout,omitempty"`
	// IdleTimeout is how long a connection is kept on which nothing is asked.
	IdleTimeout policy.Duration `json:"idle_timeout,omitempty"`
	// MaxConnections bounds the connections, half of them for one host; more are closed at once.
	MaxConnections int `json:"max_connections,omitempty"`
}

// DefaultConfig returns the config of a file that says nothing of the door.
func DefaultConfig() Config {
	return Config{
		SessionHeader:  "x-session-id",
		MaxBodyBytes:   1 << 20,
		HeaderTimeout:  policy.Duration(5 * time.Second),
		BodyTimeout:    policy.Duration(5 * time.Second),
		IdleTimeout:    policy.Duration(time.Minute),
		MaxConnections: 1000,
	}
}

// Validate checks every field but Listen. The error names it.
func (c *Config) Validate() error {
	if _, err := dialect.NewSessionKeys(c.SessionHeader); err != nil {
		return fmt.Errorf("session_header: %q cannot be the name of a header", c.SessionHeader)
	}
	for _, f := range []struct {
		name            string
		value, min, max int
	}{
		{"max_body_bytes", c.MaxBodyBytes, 1 << 10, 1 << 28},
		{"max_connections", c.MaxConnections, 1, 1 << 20},
	} {
		if f.value < f.min || f.value > f.max {
			return fmt.Errorf("%s: %d is not between %d and %d", f.name, f.value, f.min, f.max)
		}
	}
	for _, f := range []struct {
		name  string
		value policy.Duration
	}{
		{"header_timeout", c.HeaderTimeout}, {"body_timeout", c.BodyTimeout}, {"idle_timeout", c.IdleTimeout},
	} {
		if d := time.Duration(f.value); d < 10*time.Millisecond || d > time.Hour {
			return fmt.Errorf("%s: %v is not between 10ms and 1h", f.name, f.value)
		}
	}
	return nil
}
