package policy

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Modes of [Adoption]: where decisions are made if there is a look-aside server.
const (
	Broadcast   = "broadcast"    // each client, with the server's updates
	InCentral   = "central"      // the server, which each client asks; without its answer the client's own policy decides
	CentralOnly = "central_only" // the server; without its answer the call fails with UNAVAILABLE
)

// DefaultCentralDeadline is how long a client waits for a server's answer where [Adoption] does not set it.
const DefaultCentralDeadline = 20 * time.Millisecond

// Adoption is the part of a [Config] that selects what decides for how many of the calls. A host puts a change of it
// into force without giving up the state of its Router, but for ShadowPolicy.
type Adoption struct {
	// Mode is broadcast, the default, central or central_only: clients of a look-aside server ask it for every call.
	// Other hosts do not read it.
	Mode string `json:"mode,omitempty"`
	// CentralDeadline is how long to wait for the server's answer at most; 0 = 20ms, at most 10s. A server that answers
	// much faster is waited for less long.
	CentralDeadline Duration `json:"central_deadline,omitempty"`
	// ShadowPolicy decides on every call too and is not obeyed: how often it would differ is counted.
	ShadowPolicy Selection `json:"shadow_policy,omitzero"`
	// Percentage is how much of the calls the policy decides, 0 to 100; not set = 100. The rest take turns
	// (round_robin). The calls of one session go the same way. Off is the kill switch: all calls take turns, and
	// nothing else is done for them.
	Percentage *Limit `json:"percentage,omitempty"`
}

// Asks reports whether clients of a look-aside server are to ask it.
func (a *Adoption) Asks() bool {
	return (a.Mode == InCentral || a.Mode == CentralOnly) && !a.killed()
}

// NeedsServer reports whether there must be a look-aside server: without its decision a call fails.
func (a *Adoption) NeedsServer() bool { return a.Mode == CentralOnly && !a.killed() }

// ErrNeedsServer refuses such a config for a target that names no look-aside server.
var ErrNeedsServer = errors.New("mode: central_only needs a look-aside server, and the target names none; " +
	"dial warmpath://server:port/deployment, or set mode to central or broadcast")

func (a *Adoption) killed() bool { return a.Percentage != nil && *a.Percentage == Off }

// A Rollout is how much of the traffic a policy decides. What it does not, the policy [Plain] does.
type Rollout struct {
	// Share is the part of the requests that the policy decides, 0 to 1. Requests of one session go the same way; without
	// a session those with one id; without either it is drawn for each.
	Share float64
	// Off is the kill switch: neither the policy nor its shadow is called, but for the ends of what they observed before.
	Off bool
}

// Rollout is how much the policy decides.
func (a *Adoption) Rollout() Rollout {
	t := Rollout{Share: 1, Off: a.killed()}
	if a.Percentage != nil && !t.Off {
		t.Share = float64(*a.Percentage) / 100
	}
	return t
}

// Deciding is the name of the policy that decides: round_robin where the kill switch is on.
func (c *Config) Deciding() string {
	if c.killed() {
		return Plain
	}
	return cmp.Or(c.Policy.Name, Default)
}

// Routing returns the config without what is put into force in a Router that exists, its [Rollout], and
// what no Router reads: two configs that have it in common can share a Router.
func (c Config) Routing() Config {
	c.Adoption = Adoption{ShadowPolicy: c.ShadowPolicy}
	return c
}

func (a *Adoption) validate() error {
	if a.Mode != "" && a.Mode != Broadcast && a.Mode != InCentral && a.Mode != CentralOnly {
		return fmt.Errorf("mode: %q is not %s, %s or %s", a.Mode, Broadcast, InCentral, CentralOnly)
	}
	err := within("central_deadline", a.CentralDeadline, 0, Duration(10*time.Second))
	if err == nil && a.Percentage != nil {
		err = mayBeOff("percentage", *a.Percentage, 100)
	}
	if err != nil {
		return err
	}
	if err := a.ShadowPolicy.check(); err != nil {
		return fmt.Errorf("shadow_%w", err)
	}
	return nil
}
