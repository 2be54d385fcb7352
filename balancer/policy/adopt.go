package policy

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Modes of [Adoption]: where decisions are made if there is a look-aside server.
const (
	Broadcast = "broadcast" // each client, with the server's updates
	InCentral = "central"   // the server, which each client asks
)

// What a client does in mode central whose server does not answer.
const (
	FailOpen   = "fail_open"   // its own policy decides
	FailClosed = "fail_closed" // the call fails with UNAVAILABLE
)

// Adoption is the part of a [Config] that selects what decides for how many of the calls. A host puts a change of it
// into force without giving up the state of its Router, but for ShadowPolicy.
type Adoption struct {
	// Mode is broadcast, the default, or central: clients of a look-aside server ask it for every call. Other hosts do
	// not read it.
	Mode string `json:"mode,omitempty"`
	// Central configures how the server is asked.
	Central Central `json:"central,omitzero"`
	// ShadowPolicy decides on every call too and is not obeyed: how often it would differ is counted.
	ShadowPolicy Selection `json:"shadow_policy,omitzero"`
	// Percentage is how much of the calls the policy decides, 0 to 100; not set = 100. The rest take turns
	// (round_robin). The calls of one session go the same way.
	Percentage *float64 `json:"percentage,omitempty"`
	// Enabled is the kill switch: false = all calls take turns, and nothing else is done for them. Not set = true.
	Enabled *bool `json:"enabled,omitempty"`
}

// Central is how clients ask a look-aside server.
type Central struct {
	// Deadline is how long to wait for an answer at most; 0 = 20ms, at most 10s. A server that answers much faster is
	// waited for less long.
	Deadline Duration `json:"deadline,omitempty"`
	// OnFailure is fail_open, the default, or fail_closed.
	OnFailure string `json:"on_failure,omitempty"`
}

// WithDefaults returns it with every default written out.
func (c Central) WithDefaults() Central {
	c.Deadline = cmp.Or(c.Deadline, Duration(20*time.Millisecond))
	c.OnFailure = cmp.Or(c.OnFailure, FailOpen)
	return c
}

// Asks reports whether clients of a look-aside server are to ask it.
func (a *Adoption) Asks() bool { return a.Mode == InCentral && !a.killed() }

// NeedsServer reports whether there must be a look-aside server: without its decision a call fails.
func (a *Adoption) NeedsServer() bool { return a.Asks() && a.Central.OnFailure == FailClosed }

// ErrNeedsServer refuses such a config for a target that names no look-aside server.
var ErrNeedsServer = errors.New("mode: central with central.on_failure: fail_closed needs a look-aside server, and the target names none; " +
	"dial warmpath://server:port/deployment, or set on_failure to fail_open or mode to broadcast")

func (a *Adoption) killed() bool { return a.Enabled != nil && !*a.Enabled }

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
	if a.Percentage != nil {
		t.Share = *a.Percentage / 100
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
	switch {
	case a.Mode != "" && a.Mode != Broadcast && a.Mode != InCentral:
		return fmt.Errorf("mode: %q is neither %s nor %s", a.Mode, Broadcast, InCentral)
	case a.Central.OnFailure != "" && a.Central.OnFailure != FailOpen && a.Central.OnFailure != FailClosed:
		return fmt.Errorf("central.on_failure: %q is neither %s nor %s", a.Central.OnFailure, FailOpen, FailClosed)
	case a.Percentage != nil && !(*a.Percentage >= 0 && *a.Percentage <= 100):
		return fmt.Errorf("percentage: %v is not between 0 and 100", *a.Percentage)
	}
	if err := within("central.deadline", a.Central.Deadline, 0, Duration(10*time.Second)); err != nil {
		return err
	}
	p, err := a.NewShadow()
	if err != nil {
		return err
	}
	return closePolicy(p)
}

// NewShadow builds the shadow policy, the zero Policy where there is none.
func (a *Adoption) NewShadow() (Policy, error) {
	if a.ShadowPolicy.Name == "" {
		return Policy{}, nil
	}
	p, err := New(a.ShadowPolicy.Name, a.ShadowPolicy.Config)
	if err != nil {
		return Policy{}, fmt.Errorf("shadow_%w", err)
	}
	return p, nil
}
