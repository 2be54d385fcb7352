package policy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/warmpath/warmpath/internal/strict"
)

// Decode reads JSON into a config. Fields that are absent or null stay as they are; so does everything when raw is
// empty or null. A field that is unknown, there twice or of a wrong type and anything after the
// value are errors, which name the field.
func Decode(raw json.RawMessage, into any) error { return strict.Decode(raw, into) }

// Default is the policy of a config that names none.
const Default = "kv_aware"

// RequestCost is what an active request adds to the load of a replica, in prompt tokens: a decode step costs about as
// much as the prefill of so many.
const RequestCost = 500

// Config is the config of a channel, or of a deployment in the look-aside server.
// Its zero value is the default config.
type Config struct {
	// Policy is the one policy; none = kv_aware.
	Policy Selection `json:"policy,omitzero"`
	// MaxOngoingRequests bounds the requests under way on a replica that declares
	// no bound of its own; 0 = no bound.
	MaxOngoingRequests int `json:"max_ongoing_requests,omitempty"`
	// MaxQueuedRequests bounds the requests that wait while all are full; 0 =
	// 1,000, Off = no bound.
	MaxQueuedRequests Limit `json:"max_queued_requests,omitempty" zero:"1 for the shortest queue, \"off\" for no bound"`
	// MaxAttempts bounds the attempts of one call, the first included; 0 = 3, at
	// most 10.
	MaxAttempts int `json:"max_attempts,omitempty"`
	// RetryRatio bounds a channel's retries of the last 10 s to this share of its calls, plus
	// 10 retries a second; 0 = 0.2, Off = no bound. Retries after a refusal with warmpath's
	// trailer do not count.
	RetryRatio Limit `json:"retry_ratio,omitempty" zero:"\"off\" for no bound, max_attempts: 1 for no retries"`
	// Backoff is the wait before an attempt that follows a failed or a refused one.
	Backoff Backoff `json:"backoff,omitzero"`
	// FirstTokenTimeout is how long an attempt may go on without a first message before it is
	// cancelled and made elsewhere, once in a call; 0 = for ever.
	FirstTokenTimeout Duration `json:"first_token_timeout,omitempty"`
	// SessionKeys are the metadata keys of the session; the first that is present counts. Case
	// is ignored, and "-" equals "_". Not set = session_id, x-session-id; an empty list = none.
	// A call without any key is also searched for the headers of agents.
	SessionKeys []string `json:"session_keys,omitzero"`
	// PrepareTimeout bounds the tokenizer, and a policy's Prepare that calls out; 0 = 100ms, at most 1m.
	PrepareTimeout Duration `json:"prepare_timeout,omitempty"`
	// RequirePrompt fails calls without a prompt with INVALID_ARGUMENT, where the
	// policy uses prompts, in place of routing them by session or load. Calls without
	// interceptors are not checked.
	RequirePrompt bool `json:"require_prompt,omitempty"`
	// HealthService is the service whose health a client watches by grpc.health.v1 on each connection; "" = the whole
	// replica, [NoHealth] = none is watched. A replica that does not serve gets only the calls that no other may serve.
	HealthService string `json:"health_service,omitempty"`
	// Ejection configures outlier detection and slow start.
	Ejection Ejection `json:"ejection,omitzero"`
	// MaxResumes is how often a server stream that breaks after its first message goes on at another replica, with the
	// output so far behind its prompt; 0 = 2, Off = never. It is for the dialects whose output can be put there.
	MaxResumes Limit `json:"max_resumes,omitempty" zero:"\"off\" to end streams with their replica"`
	// DrainGrace is how long a draining replica keeps its recent sessions; 0 = 30s, Off = not
	// at all.
	DrainGrace Duration `json:"drain_grace,omitempty" zero:"\"off\" to keep no sessions"`
	// Node and Zone are where this process runs; replicas there are preferred by
	// the policies that look at locality.
	Node string `json:"node,omitempty"`
	Zone string `json:"zone,omitempty"`
	// KVEvents and KVEventsReplay hold for replicas that declare none, and for policies
	// that use them; HOST stands for the replica's host. The host of the Router reads them.
	KVEvents       string `json:"kv_events,omitempty"`
	KVEventsReplay string `json:"kv_events_replay,omitempty"`
	// LoadPoll has the host ask replicas for their load; "" = not at all. A client asks before each call, unless it
	// has a look-aside server. A server asks those that do not register, twice a second. It is grpc:vllm, grpc:sglang or
	// grpc:tokenspeed (GetLoads), grpc:openengine (GetLoad), grpc:orca (ORCA out of band, server/replica), or, for a server, the URL of a page for Prometheus, in
	// which HOST and PORT are those of the replica's address.
	LoadPoll string `json:"load_poll,omitempty"`
	// Dialects define which fields of which method carry the request key. The host of the
	// Router reads them.
	Dialects json.RawMessage `json:"dialects,omitempty"`
	// Tokenizer configures how the text of prompts becomes tokens. The host of the Router reads it.
	Tokenizer json.RawMessage `json:"tokenizer,omitempty"`

	Adoption
}

// NoHealth is the [Config.HealthService] of clients that do not watch the health of replicas.
const NoHealth = "off"

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
	var named map[string]json.RawMessage
	if string(raw) == "null" {
		return nil
	}
	if raw[0] != '{' {
		return errors.New(`it is not an object like {"round_robin": {}}`)
	}
	if err := strict.Decode(raw, &named); err != nil {
		return err
	}
	if len(named) > 1 {
		return fmt.Errorf("%d are named, %s; name one", len(named), strings.Join(slices.Sorted(maps.Keys(named)), ", "))
	}
	*s = Selection{}
	for name, config := range named {
		if name == "" {
			return errors.New("its name is empty")
		}
		*s = Selection{name, config}
	}
	return nil
}

// New builds the policy; the zero Policy where none is named.
func (s Selection) New() (Policy, error) {
	if s.Name == "" {
		return Policy{}, nil
	}
	return New(s.Name, s.Config)
}

// check refuses a policy that is not registered or does not take its config.
func (s Selection) check() error {
	p, err := s.New()
	if err != nil || p.Close == nil {
		return err
	}
	return p.Close()
}

// ParseConfig reads a config from JSON and checks it, the policy's own included.
// Nothing at all, null and {} are the default config. What is returned has every
// default filled in.
func ParseConfig(data []byte) (*Config, error) {
	var c Config
	err := Decode(data, &c)
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	full := c.WithDefaults()
	return &full, nil
}

// WithDefaults returns the config with every default written out.
func (c Config) WithDefaults() Config {
	c.Policy.Name = cmp.Or(c.Policy.Name, Default)
	c.MaxQueuedRequests = cmp.Or(c.MaxQueuedRequests, 1000)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 3)
	c.RetryRatio = cmp.Or(c.RetryRatio, 0.2)
	c.MaxResumes = cmp.Or(c.MaxResumes, 2)
	c.Backoff = c.Backoff.withDefaults()
	if c.SessionKeys == nil {
		c.SessionKeys = []string{"session_id", "x-session-id"}
	}
	c.PrepareTimeout = cmp.Or(c.PrepareTimeout, Duration(100*time.Millisecond))
	c.Ejection = c.Ejection.WithDefaults()
	c.DrainGrace = cmp.Or(c.DrainGrace, Duration(30*time.Second))
	if string(c.Dialects) == "null" {
		c.Dialects = nil
	}
	if string(c.Tokenizer) == "null" {
		c.Tokenizer = nil
	}
	return c
}

// Validate checks the bounds of every field, and that the policy exists and takes
// its config. The error names the field.
func (c *Config) Validate() error {
	const day = 24 * Duration(time.Hour)
	return cmp.Or(
		strict.Within("max_ongoing_requests", c.MaxOngoingRequests, 0, 1<<30),
		whole("max_queued_requests", c.MaxQueuedRequests, 1<<30),
		strict.Within("max_attempts", c.MaxAttempts, 0, 10),
		mayBeOff("retry_ratio", c.RetryRatio, 1),
		whole("max_resumes", c.MaxResumes, 10),
		strict.Within("prepare_timeout", c.PrepareTimeout, 0, Duration(time.Minute)),
		strict.Within("first_token_timeout", c.FirstTokenTimeout, 0, Duration(time.Hour)),
		mayBeOff("drain_grace", c.DrainGrace, day),
		c.Backoff.validate(),
		c.Ejection.validate(),
		checkSessionKeys(c.SessionKeys),
		checkHealthService(c.HealthService),
		c.Adoption.validate(),
		Selection{cmp.Or(c.Policy.Name, Default), c.Policy.Config}.check(),
	)
}

const (
	maxSessionKeys = 16 // bounds Config.SessionKeys
	keyCharacters  = "-_.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

func checkSessionKeys(keys []string) error {
	if len(keys) > maxSessionKeys {
		return fmt.Errorf("session_keys: %d are more than %d", len(keys), maxSessionKeys)
	}
	seen := make(map[string]string)
	for _, k := range keys {
		alike := strings.ReplaceAll(strings.ToLower(k), "-", "_")
		switch other, twice := seen[alike]; {
		case k == "" || strings.Trim(k, keyCharacters) != "":
			return fmt.Errorf("session_keys: %q is no metadata key: it may have letters, digits and any of - _ . only", k)
		case strings.HasSuffix(strings.ToLower(k), "-bin"):
			return fmt.Errorf("session_keys: %q is a binary metadata key", k)
		case twice:
			return fmt.Errorf("session_keys: %q and %q are the same key", other, k)
		}
		seen[alike] = k
	}
	return nil
}

// checkHealthService refuses what cannot be sent as a name.
func checkHealthService(name string) error {
	if len(name) > 256 || !utf8.ValidString(name) {
		return errors.New("health_service: it is not the name of a service: it has more than 256 bytes, or is not UTF-8")
	}
	return nil
}

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
	err := strict.Within("central_deadline", a.CentralDeadline, 0, Duration(10*time.Second))
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

// Backoff is the wait before an attempt of a call. The first retry is made at once, the one after it waits for Initial,
// and each further one Multiplier times as long as the one before, up to Maximum. Its zero value is the default config.
type Backoff struct {
	// Initial is the first wait; 0 = 25ms, at most 1m.
	Initial Duration `json:"initial,omitempty" zero:"\"1us\" for no wait"`
	// Multiplier is the ratio of a wait to the one before; 0 = 2, at least 1 and at most 100.
	Multiplier float64 `json:"multiplier,omitempty"`
	// Maximum bounds every wait; 0 = 500ms, or Initial where that is more; at most 1m.
	Maximum Duration `json:"maximum,omitempty"`
}

// withDefaults returns the config with every default written out.
func (b Backoff) withDefaults() Backoff {
	b.Initial = cmp.Or(b.Initial, Duration(25*time.Millisecond))
	b.Multiplier = cmp.Or(b.Multiplier, 2)
	b.Maximum = cmp.Or(b.Maximum, max(Duration(500*time.Millisecond), b.Initial))
	return b
}

// Wait returns the wait before a retry: 1 is the first one, which has none.
func (b Backoff) Wait(retry int) time.Duration {
	if retry <= 1 {
		return 0
	}
	b = b.withDefaults()
	wait := float64(b.Initial) * math.Pow(b.Multiplier, float64(retry-2))
	return time.Duration(min(wait, float64(b.Maximum)))
}

// validate checks the bounds of every field. The error names it.
func (b Backoff) validate() error {
	full := b.withDefaults()
	if full.Maximum < full.Initial && b.Maximum >= 0 {
		return fmt.Errorf("backoff.maximum: %v is less than initial, %v", b.Maximum, full.Initial)
	}
	return cmp.Or(
		strict.Within("backoff.initial", b.Initial, 0, Duration(time.Minute)),
		strict.Within("backoff.multiplier", full.Multiplier, 1, 100),
		strict.Within("backoff.maximum", b.Maximum, 0, Duration(time.Minute)),
	)
}

// Ejection is the config of outlier detection. Its zero value is the default config.
type Ejection struct {
	// Failures is how many calls in a row, failed or late, eject a replica; 0 = 5, Off = no replica is ejected.
	// SlowStart does not depend on it.
	Failures Limit `json:"failures,omitempty" zero:"\"off\" to eject no replica"`
	// LateMin is a time to the first message that is never late; 0 = 5s. Late is more than that, and more than ten times
	// the fleet's usual time.
	LateMin Duration `json:"late_min,omitempty"`
	// BaseTime is how long the first ejection lasts; 0 = 10s. Each further one lasts twice as long, up to the larger of
	// 5m and BaseTime.
	BaseTime Duration `json:"base_time,omitempty"`
	// MaxShare is the share of the replicas that may be ejected; 0 = 0.3. One replica always may, and one always stays.
	MaxShare float64 `json:"max_share,omitempty" zero:"failures: \"off\" to eject no replica"`
	// SlowStart is the time in which the share of a new or returned replica grows to the full one; 0 = 30s, Off = none.
	SlowStart Duration `json:"slow_start,omitempty" zero:"\"off\" for none"`
}

// WithDefaults returns the config with every default written out.
func (e Ejection) WithDefaults() Ejection {
	e.Failures = cmp.Or(e.Failures, 5)
	e.LateMin = cmp.Or(e.LateMin, Duration(5*time.Second))
	e.BaseTime = cmp.Or(e.BaseTime, Duration(10*time.Second))
	e.MaxShare = cmp.Or(e.MaxShare, 0.3)
	e.SlowStart = cmp.Or(e.SlowStart, Duration(30*time.Second))
	return e
}

// validate checks the bounds of every field. The error names it.
func (e *Ejection) validate() error {
	full := e.WithDefaults()
	const least, most = Duration(time.Millisecond), Duration(time.Hour)
	return cmp.Or(
		whole("ejection.failures", e.Failures, 1000),
		strict.Within("ejection.late_min", full.LateMin, least, most),
		strict.Within("ejection.base_time", full.BaseTime, least, most),
		strict.Within("ejection.max_share", full.MaxShare, 0, 1),
		mayBeOff("ejection.slow_start", e.SlowStart, most),
	)
}
