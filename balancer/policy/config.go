package policy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/warmpath/warmpath/balancer/policy/prefixaffinity"
	"github.com/warmpath/warmpath/balancer/routing"
)

// Default is the policy of a config that names none.
const Default = prefixaffinity.Name

// Defaults and bounds of [Config].
const (
	DefaultMaxAttempts = 3
	MaxAttempts        = 10
	MaxSessionKeys     = 16
	MaxRequestCost     = 1_000_000
	MaxPrepareTimeout  = time.Minute
)

// Config is the config of a channel, or of a deployment in the look-aside server.
// Its zero value is the default config.
type Config struct {
	// Policy is the one policy; the zero value is Default.
	Policy Selection `json:"policy,omitzero"`
	// MaxOngoingRequests bounds the requests under way on a replica that declares
	// no bound of its own; 0 = no bound.
	MaxOngoingRequests int `json:"max_ongoing_requests,omitempty"`
	// MaxQueuedRequests bounds the requests that wait while all are full; 0 =
	// 1,000, -1 = no bound.
	MaxQueuedRequests int `json:"max_queued_requests,omitempty"`
	// MaxAttempts bounds the attempts of one call, the first included; 0 = 3, at
	// most 10.
	MaxAttempts int `json:"max_attempts,omitempty"`
	// SessionKeys are the metadata keys that carry the session, the first that is
	// there counts. They match in any case, and "-" like "_". nil = session_id,
	// x-session-id; an empty list = none.
	SessionKeys []string `json:"session_keys,omitzero"`
	// RequestCostTokens is what an active request adds to a replica's load; 0 =
	// 500, -1 = nothing.
	RequestCostTokens int `json:"request_cost_tokens,omitempty"`
	// PrepareTimeout bounds a policy's Prepare that calls out; 0 = 100ms, at most 1m.
	PrepareTimeout Duration `json:"prepare_timeout,omitempty"`
	// Node and Zone are where this process runs; replicas there are preferred by
	// the policies that look at locality.
	Node string `json:"node,omitempty"`
	Zone string `json:"zone,omitempty"`
	// Dialects say which fields of which method carry the request key. They are
	// read by the host.
	Dialects json.RawMessage `json:"dialects,omitempty"`
}

// A Selection names a policy and carries its config. In JSON it is an object of
// one field: {"consistent_hash": {"num_fallback_replicas": 1}}.
type Selection struct {
	Name   string
	Config json.RawMessage
}

// MarshalJSON implements [json.Marshaler].
func (s Selection) MarshalJSON() ([]byte, error) {
	config := s.Config
	if len(config) == 0 {
		config = json.RawMessage("{}")
	}
	return json.Marshal(map[string]json.RawMessage{cmp.Or(s.Name, Default): config})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (s *Selection) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		return nil
	}
	if raw[0] != '{' {
		return errors.New(`policy: it is not an object like {"round_robin": {}}`)
	}
	// Not into a map: that would hide a name that comes twice.
	d := json.NewDecoder(bytes.NewReader(raw))
	if _, err := d.Token(); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	var named []Selection
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return fmt.Errorf("policy: %w", err)
		}
		next := Selection{Name: name.(string)}
		if err := d.Decode(&next.Config); err != nil {
			return fmt.Errorf("policy.%s: %w", next.Name, err)
		}
		named = append(named, next)
	}
	switch len(named) {
	case 0:
		*s = Selection{}
	case 1:
		*s = named[0]
	default:
		return fmt.Errorf("policy: %d are named, %q and %q among them; name one", len(named), named[0].Name, named[1].Name)
	}
	if len(named) == 1 && s.Name == "" {
		return errors.New("policy: its name is empty")
	}
	return nil
}

// ParseConfig reads a config from JSON and checks it, the policy's own included.
// Nothing at all, null and {} are the default config. What is returned has every
// default filled in.
func ParseConfig(data []byte) (*Config, error) {
	var c Config
	if err := Decode(data, &c); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	full := c.WithDefaults()
	return &full, nil
}

// ParseYAML reads a config from YAML as [ParseConfig] does from JSON.
func ParseYAML(data []byte) (*Config, error) {
	raw, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return ParseConfig(raw)
}

// WithDefaults returns the config with every default written out.
func (c Config) WithDefaults() Config {
	c.Policy.Name = cmp.Or(c.Policy.Name, Default)
	c.MaxQueuedRequests = cmp.Or(c.MaxQueuedRequests, routing.DefaultMaxQueued)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, DefaultMaxAttempts)
	if c.SessionKeys == nil {
		c.SessionKeys = []string{"session_id", "x-session-id"}
	}
	c.RequestCostTokens = cmp.Or(c.RequestCostTokens, routing.DefaultRequestCost)
	c.PrepareTimeout = cmp.Or(c.PrepareTimeout, Duration(routing.DefaultPrepareTimeout))
	if string(c.Dialects) == "null" {
		c.Dialects = nil
	}
	return c
}

// Validate checks the bounds of every field, and that the policy exists and takes
// its config. The error names the field.
func (c *Config) Validate() error {
	for _, f := range []struct {
		name     string
		value    int
		min, max int
	}{
		{"max_ongoing_requests", c.MaxOngoingRequests, 0, 1 << 30},
		{"max_queued_requests", c.MaxQueuedRequests, -1, 1 << 30},
		{"max_attempts", c.MaxAttempts, 0, MaxAttempts},
		{"request_cost_tokens", c.RequestCostTokens, -1, MaxRequestCost},
	} {
		if f.value < f.min || f.value > f.max {
			return fmt.Errorf("%s: %d is not between %d and %d", f.name, f.value, f.min, f.max)
		}
	}
	if c.PrepareTimeout < 0 || c.PrepareTimeout > Duration(MaxPrepareTimeout) {
		return fmt.Errorf("prepare_timeout: %v is not between 0s and %v", c.PrepareTimeout, MaxPrepareTimeout)
	}
	if err := checkSessionKeys(c.SessionKeys); err != nil {
		return fmt.Errorf("session_keys: %w", err)
	}
	p, err := c.newPolicy()
	if err != nil {
		return err
	}
	return closePolicy(p)
}

func checkSessionKeys(keys []string) error {
	if len(keys) > MaxSessionKeys {
		return fmt.Errorf("%d are more than %d", len(keys), MaxSessionKeys)
	}
	seen := make(map[string]string)
	for _, k := range keys {
		if k == "" {
			return errors.New("one is empty")
		}
		for _, r := range k {
			if !strings.ContainsRune("-_.", r) && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
				return fmt.Errorf("%q is no metadata key: it has %q", k, r)
			}
		}
		if strings.HasSuffix(strings.ToLower(k), "-bin") {
			return fmt.Errorf("%q is a binary metadata key", k)
		}
		alike := strings.ReplaceAll(strings.ToLower(k), "-", "_")
		if other, ok := seen[alike]; ok {
			return fmt.Errorf("%q and %q are the same key", other, k)
		}
		seen[alike] = k
	}
	return nil
}

func (c *Config) newPolicy() (routing.Policy, error) {
	return New(cmp.Or(c.Policy.Name, Default), c.Policy.Config)
}

// NewRouter builds the policy and a Router around it, over an empty fleet. adjust,
// which may be nil, sees the options before the Router does: the clock, the
// randomness, and whatever the host knows better.
func (c *Config) NewRouter(adjust func(*routing.Options)) (*routing.Router, error) {
	full := c.WithDefaults()
	p, err := full.newPolicy()
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	o := routing.Options{
		Policy:         p,
		MaxOngoing:     full.MaxOngoingRequests,
		MaxQueued:      full.MaxQueuedRequests,
		RequestCost:    float64(full.RequestCostTokens),
		PrepareTimeout: time.Duration(full.PrepareTimeout),
		Node:           full.Node,
		Zone:           full.Zone,
	}
	if adjust != nil {
		adjust(&o)
	}
	r, err := routing.NewRouter(o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("config: %w", err), closePolicy(p))
	}
	return r, nil
}

// closePolicy gives back what a policy holds that no Router was built around.
func closePolicy(p routing.Policy) error {
	if c, ok := p.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
