package replica

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/fleet"
)

// Config describes the replica. Its zero value counts calls, refuses none, and registers nowhere.
type Config struct {
	// Replica is what is registered of this one, as in a fleet file. Address is where clients reach it, host:port;
	// default: the listener's, if that is an address others can use. The id defaults to the address: where that changes
	// from one start to the next, give one that does not. MaxOngoingRequests is the bound on calls in the handlers; 0 =
	// none.
	Replica fleet.Replica
	// KVTokens is the size of the KV cache in tokens; 0 = not known.
	KVTokens int

	// Servers are the look-aside servers to register with, as gRPC targets: all of those that serve the deployment.
	Servers []string
	// DialOptions are for the connections to Servers, transport credentials among them.
	DialOptions []grpc.DialOption
	// Deployment to register in; empty = the servers' only one.
	Deployment string
	// Lease is how long a server keeps the replica without hearing of it: at least a second; 0 = the server's
	// register_lease, which is also the most.
	Lease time.Duration

	// DrainNotice is how long new calls are still served after the word that the replica drains, so that the word gets
	// round; default 1 s, negative = no time.
	DrainNotice time.Duration
	// DrainTimeout is how long calls under way may take after that; default 30 s. What is left then is cut off.
	DrainTimeout time.Duration

	// Load is asked for the engine's load at the end of every call and for every heartbeat; nil = what the interceptors
	// count. It is called from many goroutines, and must neither block nor take long.
	Load func() Load
	// Stats is asked for free-form numbers for custom policies at every heartbeat; nil = none. The map must not be
	// written afterwards. Called from one goroutine per server.
	Stats func() map[string]float64
	// Counts lists the methods that are calls for the model, by their full names; others are neither counted nor refused,
	// and carry no load. Abort and other small things belong there. Default: all but gRPC's own services, which never
	// count. Called from many goroutines.
	Counts func(fullMethod string) bool
	// OmitLoad leaves the load out of the trailers, for servers that send an ORCA report of their own.
	OmitLoad bool
	// Logger logs when the replica is registered and when it no longer is; default [slog.Default].
	Logger *slog.Logger
}

const (
	defaultDrainNotice  = time.Second
	defaultDrainTimeout = 30 * time.Second
	minLease, maxLease  = time.Second, 24 * time.Hour
)

// withDefaults fills in what is empty and checks the rest; errors name the field.
func (c Config) withDefaults() (Config, error) {
	if c.DrainNotice == 0 {
		c.DrainNotice = defaultDrainNotice
	}
	c.DrainNotice = max(c.DrainNotice, 0)
	if c.DrainTimeout == 0 {
		c.DrainTimeout = defaultDrainTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch {
	case c.DrainTimeout < 0:
		return c, fmt.Errorf("replica: DrainTimeout: %v is less than 0", c.DrainTimeout)
	case c.Lease != 0 && (c.Lease < minLease || c.Lease > maxLease):
		return c, fmt.Errorf("replica: Lease: %v is not between %v and %v", c.Lease, minLease, maxLease)
	case c.Replica.MaxOngoingRequests > math.MaxInt32:
		return c, fmt.Errorf("replica: Replica: max_ongoing_requests: %d is more than %d", c.Replica.MaxOngoingRequests, math.MaxInt32)
	case c.KVTokens < 0 || c.KVTokens > math.MaxInt32:
		return c, fmt.Errorf("replica: KVTokens: %d is not between 0 and %d", c.KVTokens, math.MaxInt32)
	}
	if c.Replica.Address == "" { // the listener's is not known yet
		_, err := settle(c.Replica, "127.0.0.1:1")
		return c, err
	}
	var err error
	c.Replica, err = settle(c.Replica, c.Replica.Address)
	return c, err
}

// settle returns a replica at an address with its defaults, as a fleet file would have it.
func settle(r fleet.Replica, address string) (fleet.Replica, error) {
	r.Address = address
	file, err := json.Marshal(map[string][]fleet.Replica{"replicas": {r}})
	if err != nil {
		return r, errors.New("replica: Replica: weight is not a finite number")
	}
	all, err := fleet.Parse(file)
	if err != nil {
		return r, fmt.Errorf("replica: Replica: %s", strings.TrimPrefix(err.Error(), "replicas[0]."))
	}
	return all[0], nil
}
