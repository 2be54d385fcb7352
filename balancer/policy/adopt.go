package policy

import (
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

// Adoption is the part of a [Config] that selects what decides, and for how many of the calls. A change of it keeps the
// state of the Router, except for ShadowPolicy.
type Adoption struct {
	// Mode is [Broadcast], [InCentral] or [CentralOnly]; empty = broadcast. Only clients of a look-aside server read it.
	Mode string `json:"mode,omitempty"`
	// CentralDeadline is the longest wait for the server's answer; 0 = 20ms, at most 10s.
	CentralDeadline Duration `json:"central_deadline,omitempty"`
	// ShadowPolicy decides on every call too, without effect: metrics count how often it differs.
	ShadowPolicy Selection `json:"shadow_policy,omitzero"`
	// Percentage is the share of calls that the policy decides, 0 to 100; not set = 100. The rest rotate (round_robin).
	// The calls of one session go the same way. Off is the kill switch: all calls rotate, and nothing else is done for
	// them.
	Percentage *Limit `json:"percentage,omitempty"`
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
