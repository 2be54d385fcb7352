package router

import (
	"errors"
	"fmt"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
)

// FromConfig builds the policy of a config and a Router around it, over an empty fleet. adjust,
// which may be nil, sees the options before the Router does: the clock, the
// randomness, and whatever the host sets itself.
func FromConfig(c *policy.Config, adjust func(*Options)) (*Router, error) {
	full := c.WithDefaults()
	p, err := full.NewPolicy()
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	shadow, err := full.NewShadow()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("config: %w", err), closePolicies(p))
	}
	plain, err := policy.New(policy.Plain, nil)
	if err != nil {
		return nil, errors.Join(err, closePolicies(p, shadow))
	}
	o := Options{
		Policy:         p,
		Plain:          plain,
		Shadow:         shadow,
		MaxOngoing:     full.MaxOngoingRequests,
		MaxQueued:      int(full.MaxQueuedRequests),
		PrepareTimeout: time.Duration(full.PrepareTimeout),
		Ejection:       &full.Ejection,
		DrainGrace:     max(time.Duration(full.DrainGrace), 0),
		Node:           full.Node,
		Zone:           full.Zone,
	}
	if adjust != nil {
		adjust(&o)
	}
	r, err := NewRouter(o)
	if err == nil {
		err = r.Rollout.Set(full.Rollout())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("config: %w", err), closePolicies(p, shadow))
	}
	return r, nil
}

// closePolicies gives back what policies hold that no Router was built around.
func closePolicies(all ...policy.Policy) (err error) {
	for _, p := range all {
		if p.Close != nil {
			err = errors.Join(err, p.Close())
		}
	}
	return err
}
