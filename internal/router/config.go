package router

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
)

// FromConfig builds the policy of a config and a Router around it, over an empty fleet. adjust,
// which may be nil, sees the options before the Router does: the clock, the
// randomness, and whatever the host sets itself.
func FromConfig(c *policy.Config, adjust func(*Options)) (*Router, error) {
	full := c.WithDefaults()
	p, err := full.Policy.New()
	shadow, shadowErr := full.ShadowPolicy.New()
	plain, plainErr := policy.New(plainName, nil)
	o := Options{
		Policy:         p,
		Prefill:        full.Policy.New,
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
	err = errors.Join(err, shadowErr, plainErr)
	if err == nil && adjust != nil {
		adjust(&o)
	}
	var r *Router
	if err == nil {
		r, err = NewRouter(o)
	}
	if err == nil {
		err = r.Rollout.Set(full.Percentage)
	}
	if err == nil {
		return r, nil
	}
	o.Tokenizer = nil // the caller's
	return nil, errors.Join(fmt.Errorf("config: %w", err), closeAll(closersOf(&o)))
}

// plainName is the policy that decides for the calls that a config keeps from its own.
const plainName = "round_robin"

// Deciding is the name of the policy that decides: round_robin where the kill switch is on.
func Deciding(c *policy.Config) string {
	if c.Percentage != nil && *c.Percentage == policy.Off {
		return plainName
	}
	return cmp.Or(c.Policy.Name, policy.Default)
}

// Lasting returns the config without what is put into force in a Router that exists, its percentage, and
// what no Router reads: two configs that have it in common can share a Router.
func Lasting(c policy.Config) policy.Config {
	c.Adoption = policy.Adoption{ShadowPolicy: c.ShadowPolicy}
	c.LoadPoll, c.HealthService = "", ""
	return c
}

// Describe describes a config in one log line: its policy, session keys and mode, and as "settings" every other field
// that differs from its default.
func Describe(c policy.Config) []slog.Attr {
	full := c.WithDefaults()
	settings, usual := fieldsOf(full), fieldsOf(policy.Config{Policy: policy.Selection{Name: full.Policy.Name}}.WithDefaults())
	for name, value := range settings {
		if name == "session_keys" || name == "mode" || bytes.Equal(value, usual[name]) {
			delete(settings, name)
		}
	}
	text, _ := json.Marshal(settings) // of JSON
	return []slog.Attr{
		slog.String("policy", Deciding(&full)), slog.Any("session_keys", full.SessionKeys),
		slog.String("mode", cmp.Or(full.Mode, policy.Broadcast)), slog.String("settings", string(text)),
	}
}

// fieldsOf is a config field by field, as it is written.
func fieldsOf(c policy.Config) (fields map[string]json.RawMessage) {
	raw, _ := json.Marshal(c) // of checked JSON
	_ = json.Unmarshal(raw, &fields)
	return fields
}
