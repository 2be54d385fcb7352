package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/drive"
	"github.com/warmpath/warmpath/internal/enginesim"
	"github.com/warmpath/warmpath/internal/sim/baseline"
)

// Share is what clients know of each other.
type Share string

// The ways to share. See the package comment.
const (
	ShareNone    Share = "none"
	ShareLoad    Share = "load"
	ShareCentral Share = "central"
)

// Shares are all of them, by name.
var Shares = []string{string(ShareNone), string(ShareLoad), string(ShareCentral)}

// DefaultInterval is how often load is shared where nothing is said.
const DefaultInterval = 100 * time.Millisecond

// maxMachines bounds replicas and clients.
const maxMachines = 1 << 12

// Config is one run: one policy, one seed.
type Config struct {
	// Replicas is the number of engines, Clients that of Routers.
	Replicas, Clients int
	// Engine describes the engines. Its Listener is not used.
	Engine enginesim.Config
	// Channel is the clients' config, as in a service config. Its policy is one of Policies.
	Channel policy.Config
	// Share is what clients know of each other; empty means ShareNone.
	Share Share
	// Interval is how often load is shared; 0 means DefaultInterval.
	Interval time.Duration
	// Affinity sends all requests of a session to one client.
	Affinity bool
	// WarmUp is how much of the workload is not measured.
	WarmUp time.Duration
	// Seed draws the clients of requests, and is the randomness of the Routers.
	Seed uint64
	// Progress is told now and then how far the run is; nil means nobody is.
	Progress func(drive.Progress)

	// slow ends the run with errSlow once more measured requests than this were not good; 0 means never.
	slow int
}

// Policies are the names that a Config may have, sorted: the product's and the baselines.
func Policies() []string {
	names := append(policy.Names(), baseline.Names()...)
	slices.Sort(names)
	return names
}

// name is that of the policy.
func (c *Config) name() string { return cmp.Or(c.Channel.Policy.Name, policy.Default) }

// resolve checks a config and fills in what is empty.
func (c Config) resolve() (Config, error) {
	c.Share = cmp.Or(c.Share, ShareNone)
	c.Interval = cmp.Or(c.Interval, DefaultInterval)
	refuse := func(format string, args ...any) (Config, error) {
		return c, fmt.Errorf("sim: "+format, args...)
	}
	switch {
	case c.Replicas < 1 || c.Replicas > maxMachines:
		return refuse("replicas: %d are not 1 to %d", c.Replicas, maxMachines)
	case c.Clients < 1 || c.Clients > maxMachines:
		return refuse("clients: %d are not 1 to %d", c.Clients, maxMachines)
	case !slices.Contains(Shares, string(c.Share)):
		return refuse("share: %q is not one of %s", c.Share, strings.Join(Shares, ", "))
	case c.Interval < time.Millisecond:
		return refuse("interval: %v is less than 1ms", c.Interval)
	case c.WarmUp < 0:
		return refuse("warm-up: %v is negative", c.WarmUp)
	case c.Channel.MaxOngoingRequests != 0:
		return refuse("max_ongoing_requests: nothing waits in front of the simulated fleet")
	case !slices.Contains(Policies(), c.name()):
		return refuse("policy %q is not one of %s", c.name(), strings.Join(Policies(), ", "))
	}
	return c, nil
}
