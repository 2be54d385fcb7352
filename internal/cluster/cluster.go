// Package cluster is what a look-aside server needs to share its view with others: messages that may be lost, and a
// store. A module that is imported for its effect implements it, so that the server links no message system.
package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Config joins servers to one view; zero = the server is alone. All servers of a cluster have the same deployments.
type Config struct {
	// NATS joins them over NATS.
	NATS *NATS `json:"nats,omitempty"`
}

// NATS is a NATS inside the server, or one that runs; one of Embed and URL is set.
type NATS struct {
	// Embed runs NATS inside this server.
	Embed *Embed `json:"embed,omitempty"`
	// URL is that of a NATS that runs, with JetStream, like nats://host:4222 or tls://host:4222; several are separated by
	// commas.
	URL string `json:"url,omitempty"`
	// Creds is a file with NATS credentials; empty = none.
	Creds string `json:"creds,omitempty"`
}

// Embed is NATS inside the server. It has no port for clients.
type Embed struct {
	// Listen is where the other servers connect to, host:port.
	Listen string `json:"listen,omitempty"`
	// Routes are the other servers, nats://host:port; one of them suffices, and a host may stand for all of them. With
	// nats://user:password@host:port the servers require that of each other.
	Routes []string `json:"routes,omitempty"`
	// TLS secures the routes; none = they are in plaintext.
	TLS *TLS `json:"tls,omitempty"`
}

// TLS is what a server shows the others of its cluster, and requires of them: a certificate that the authority has
// signed, which both sides show and whose name is the host of the route. All fields are files in PEM. A changed pair
// counts for the next connection, a changed authority after a restart.
type TLS struct {
	CA   string `json:"ca,omitempty"`
	Cert string `json:"cert,omitempty"`
	Key  string `json:"key,omitempty"`
}

// Validate checks every field. The error names it.
func (c *Config) Validate() error {
	n := c.NATS
	switch {
	case n == nil:
		return nil
	case (n.Embed == nil) == (n.URL == ""):
		return errors.New("nats: want one of embed and url")
	case n.Embed == nil:
		return nil
	case n.Creds != "":
		return errors.New("nats.creds: only with url")
	}
	if _, _, err := net.SplitHostPort(n.Embed.Listen); err != nil {
		return fmt.Errorf("nats.embed.listen: %q is not host:port", n.Embed.Listen)
	}
	if len(n.Embed.Routes) == 0 {
		return errors.New("nats.embed.routes: want nats://host:port of another server, or of all")
	}
	for i, r := range n.Embed.Routes {
		if u, err := url.Parse(r); err != nil || u.Port() == "" {
			return fmt.Errorf("nats.embed.routes[%d]: want nats://host:port", i)
		}
	}
	if t := n.Embed.TLS; t != nil && (t.CA == "" || t.Cert == "" || t.Key == "") {
		return errors.New("nats.embed.tls: want all of ca, cert and key")
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
