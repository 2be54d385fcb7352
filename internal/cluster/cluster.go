// Package cluster is what a look-aside server needs to share its view with others: messages that may be lost, and a
// store. A module that is imported for its effect implements it, so that the server links no message system.
package cluster

import (
	"errors"
	"log/slog"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Config joins servers to one view; zero = the server is alone. All servers of a cluster have the same deployments.
type Config struct {
	// NATS joins them over NATS.
	NATS *NATS `json:"nats,omitempty"`
}

// NATS is a NATS that runs.
type NATS struct {
	// URL is the address of NATS, like nats://host:4222 or tls://host:4222. Commas separate several addresses.
	URL string `json:"url,omitempty"`
	// Creds is a file with NATS credentials, or with user:password; empty = none.
	Creds string `json:"creds,omitempty"`
}

// Validate checks every field. The error names it.
func (c *Config) Validate() error {
	if c.NATS != nil && c.NATS.URL == "" {
		return errors.New("nats.url: want nats://host:4222 of a NATS that runs")
	}
	return nil
}

// A Bus carries messages between the servers of a cluster. Safe for use by many goroutines.
type Bus interface {
	// Publish sends a message to all that subscribe to the subject. It does not wait, and the message may be lost;
	// messages of one sender keep their order. The error is [ErrTooLarge] if the bus never takes a message of this size.
	Publish(subject string, message []byte) error
	// Subscribe calls take with each message of a subject, one after the other, until stop is called, which waits.
	Subscribe(subject string, take func(message []byte)) (stop func(), err error)
	// Store is a store that the servers share.
	Store(name string) policy.Store
	// Connected reports whether messages can be sent now.
	Connected() bool
	// Close ends all, once what was published is sent, or a moment later.
	Close()
}

// Open opens the bus of a config that has one. A module sets it when it is linked; nil = none is.
var Open func(Config, *slog.Logger) (Bus, error)

// ErrTooLarge is the error of a message that is larger than the bus takes.
var ErrTooLarge = errors.New("the message is larger than the bus takes")

// ErrNotLinked is the error of a config whose bus is not linked.
var ErrNotLinked = errors.New(`nats: it is not linked: import _ "github.com/warmpath/warmpath/server/nats"`)
