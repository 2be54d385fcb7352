package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	_ "github.com/warmpath/warmpath/internal/builtin"
	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/sim/baseline"
)

// Share is what clients know of each other.
type Share string

// The ways to share. See the package comment.
const (
	ShareNone      Share = "none"
	ShareLoad      Share = "load"
	ShareBroadcast Share = "broadcast"
	SharePoll      Share = "poll"
	SharePollCount Share = "poll_count"
)

// Shares are all of them, by name.
var Shares = []string{string(ShareNone), string(ShareLoad), string(ShareBroadcast), string(SharePoll),
	string(SharePollCount)}

// DefaultInterval is how often load and caches are shared by default.
const DefaultInterval = 100 * time.Millisecond

// maxMachines bounds replicas and clients.
const maxMachines = 1 << 12

// Config is one run: one policy, one seed.
type Config struct {
	// Replicas is the number of engines, Clients that of Routers.
	Replicas, Clients int
	// Engines describe the engines: they take turns, so that with two every other replica is alike. None means
	// the default engine. Blocks have one size. A Listener is not used.
	Engines []enginesim.Config
	// Prefill is how many engines, the first ones, only prefill, and Decode how many, the next ones, do not prefill for
	// others. The rest does everything.
	Prefill, Decode int
	// Split decides which requests are split over two engines where there are such: one of baseline.Splits;
	// empty means the product's own comparison of costs, baseline.SplitNever that no engine has a role.
	Split string
	// Channel is the clients' config, as in a service config. Its policy is one of Policies.
	Channel policy.Config
	// Patience is how long after its arrival a request that waits in a client's queue gives up; 0 means never.
	Patience time.Duration
	// Share is what clients know of each other; empty means ShareNone.
	Share Share
	// NoEvents: engines report no KV events, so a policy that follows them knows only what its own client has sent.
	NoEvents bool
	// Interval is how often load and caches are shared; 0 means DefaultInterval.
	Interval time.Duration
	// Servers is the number of look-aside servers that share load and caches with each other; 0 means 1.
	Servers int
	// Affinity sends all requests of a session to one client.
	Affinity bool
	// AtOnce is how many requests are under way at any moment: the next one arrives when one ends, and the times of
	// the workload give the order only. 0 means that requests arrive at their times.
	AtOnce int
	// WarmUp is how much of the workload is not measured.
	WarmUp time.Duration
	// Targets are what a request must keep to count as good.
	Targets drive.Targets
	// Seed draws the clients of requests, and is the randomness of the Routers.
	Seed uint64
	// Progress is called now and then with how far the run is; nil = none.
	Progress func(drive.Progress)

	// slow ends the run with errSlow once more measured requests than this were not good; 0 means never.
	slow int
	// longest is the longest prompt that counts for slow.
	longest int
}

// Policies are the names that a Config may have, sorted: the product's and the baselines.
func Policies() []string {
	names := append(policy.Names(), baseline.Names()...)
	slices.Sort(names)
	return names
}

// name is that of the policy.
func (c *Config) name() string { return cmp.Or(c.Channel.Policy.Name, policy.Default) }

// Check refuses a config that cannot be run, naming the field.
func (c Config) Check() error {
	_, err := c.resolve()
	return err
}

// resolve checks a config and fills in what is empty.
func (c Config) resolve() (Config, error) {
	c.Share, c.Split = cmp.Or(c.Share, ShareNone), cmp.Or(c.Split, baseline.SplitCost)
	if c.Split == baseline.SplitNever {
		c.Prefill, c.Decode = 0, 0
	}
	c.Interval, c.Servers = cmp.Or(c.Interval, DefaultInterval), cmp.Or(c.Servers, 1)
	refuse := func(format string, args ...any) (Config, error) {
		return c, fmt.Errorf("sim: "+format, args...)
	}
	switch {
	case c.Replicas < 1 || c.Replicas > maxMachines:
		return refuse("replicas: %d are not 1 to %d", c.Replicas, maxMachines)
	case c.Clients < 1 || c.Clients > maxMachines:
		return refuse("clients: %d are not 1 to %d", c.Clients, maxMachines)
	case c.Servers < 1 || c.Servers > c.Clients:
		return refuse("servers: %d are not 1 to the number of clients", c.Servers)
	case !slices.Contains(Shares, string(c.Share)):
		return refuse("share: %q is not one of %s", c.Share, strings.Join(Shares, ", "))
	case c.Prefill < 0 || c.Decode < 0 || c.Prefill > 0 && c.Prefill == c.Replicas || c.Prefill+c.Decode > c.Replicas:
		return refuse("roles: %d prefill and %d decode in a fleet of %d", c.Prefill, c.Decode, c.Replicas)
	case c.Prefill+c.Decode > 0 && slices.Contains(baseline.Names(), c.name()):
		return refuse("policy: %s is not one of the product's, which roles need", c.name())
	case !slices.Contains(baseline.Splits, c.Split):
		return refuse("split: %q is not one of %s", c.Split, strings.Join(baseline.Splits, ", "))
	case c.Interval < time.Millisecond:
		return refuse("interval: %v is less than 1ms", c.Interval)
	case c.AtOnce < 0:
		return refuse("at once: %d is negative", c.AtOnce)
	case c.WarmUp < 0:
		return refuse("warm-up: %v is negative", c.WarmUp)
	case !slices.Contains(Policies(), c.name()):
		return refuse("policy %q is not one of %s", c.name(), strings.Join(Policies(), ", "))
	case c.Patience < 0:
		return refuse("patience: %v is negative", c.Patience)
	case c.Channel.MaxOngoingRequests == 0 && (c.Patience > 0 || c.Channel.MaxQueuedRequests != 0):
		return refuse("nothing waits without max_ongoing_requests")
	}
	engines := c.Engines
	if len(engines) == 0 {
		engines = make([]enginesim.Config, 1)
	}
	c.Engines = nil
	for _, cfg := range engines {
		cfg.Listener = nil
		e, err := enginesim.New(cfg)
		if err != nil {
			return c, err
		}
		c.Engines = append(c.Engines, e.Config())
	}
	size := c.Engines[0].BlockSize
	for _, e := range c.Engines {
		if e.BlockSize != size {
			return refuse("engines: blocks of %d and of %d tokens in one fleet", size, e.BlockSize)
		}
	}
	if c.Share == ShareBroadcast && policy.SuperblockTokens%size != 0 {
		return refuse("engines: blocks of %d tokens do not divide superblocks of %d", size, policy.SuperblockTokens)
	}
	return c, nil
}
