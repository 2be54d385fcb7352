package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/fleet"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/httpendpoint"
	"github.com/warmpath/warmpath/internal/tokenize"
)

// Config is what `warmpath serve` reads. Only Deployments are needed.
type Config struct {
	// Listen is the address to listen on, host:port. Read once.
	Listen string `json:"listen,omitempty"`
	// AllowPlaintext allows listening elsewhere than on the loopback without TLS. Read once.
	AllowPlaintext bool `json:"allow_plaintext,omitempty"`
	// TLS is the server's certificate, and what callers have to show; none = plaintext. The files' names are read once.
	TLS *TLS `json:"tls,omitempty"`
	// Principals may use the server, each with what it may do; none = every call is unrestricted. Health checks of the server
	// as a whole are answered to all.
	Principals []Principal `json:"principals,omitempty"`
	// Admin is an address on the loopback for pprof, /debug/pprof/ over HTTP; empty = none. Read once.
	Admin string `json:"admin,omitempty"`
	// LogCalls logs every call: method, caller's address, status and duration, and nothing of what was said. Read once.
	LogCalls bool `json:"log_calls,omitempty"`
	// LoadInterval is how often load is told to watching clients; 10ms to 10s.
	LoadInterval policy.Duration `json:"load_interval,omitempty"`
	// StaleAfter is how old a report may be before the load that rests on it is marked as stale; 1s to 1h.
	StaleAfter policy.Duration `json:"stale_after,omitempty"`
	// Lease is how long a reservation lasts of which nothing is heard; 1s to 24h.
	Lease policy.Duration `json:"lease,omitempty"`
	// CountedHold is how long a pick counts that nobody reports on; at most 1h.
	CountedHold policy.Duration `json:"counted_hold,omitempty"`
	// QueryHold is how long a mere question counts; at most 1m.
	QueryHold policy.Duration `json:"query_hold,omitempty"`
	// RegisterLease is how long a replica stays that registered itself and is silent; 1s to 1h.
	RegisterLease policy.Duration `json:"register_lease,omitempty"`
	// MaxMessageBytes bounds a message that is received; 1024 to 1 GiB. Read once.
	MaxMessageBytes int `json:"max_message_bytes,omitempty"`
	// MaxConnections bounds the connections; half of them may come from one host, and more are closed at once. Read once.
	MaxConnections int `json:"max_connections,omitempty"`
	// MaxStreams bounds the calls under way on one connection. Read once.
	MaxStreams int `json:"max_streams,omitempty"`
	// MaxWatchers bounds the clients that watch one deployment.
	MaxWatchers int `json:"max_watchers,omitempty"`
	// MaxReservations bounds the picks that count in one deployment, of all modes; each takes about 5 KB with long prompts.
	MaxReservations int `json:"max_reservations,omitempty"`
	// MaxRegistered bounds the replicas that register themselves in one deployment.
	MaxRegistered int `json:"max_registered,omitempty"`
	// Metrics says where metrics can be read. Read once.
	Metrics Metrics `json:"metrics,omitzero"`
	// HTTP is the door for callers that speak HTTP. Read once.
	HTTP httpendpoint.Config `json:"http,omitzero"`
	// Deployments are the fleets; one or more. A name has no blank and no colon.
	Deployments map[string]Deployment `json:"deployments"`
}

// A Deployment is one fleet with one policy. Beside its own fields it has those of [policy.Config].
type Deployment struct {
	// Models are further names by which requests mean this deployment.
	Models []string `json:"models,omitempty"`
	// Replicas are those known from the start, as in a fleet file.
	Replicas Replicas `json:"replicas,omitempty"`
	// Target is a gRPC target like dns:///host:port, all of whose addresses are replicas.
	Target string `json:"target,omitempty"`
	// ResolveInterval is how often Target is resolved anew; 1s to 1h.
	ResolveInterval policy.Duration `json:"resolve_interval,omitempty"`
	// HealthCheck asks the replicas that do not register whether they serve; none = nobody is asked.
	HealthCheck *HealthCheck `json:"health_check,omitempty"`
	// ReplicaTLS is how the server itself reaches replicas over gRPC: to check their health, to ask for their load
	// (GetLoads), and to follow their KV events; none = in plaintext.
	ReplicaTLS *ReplicaTLS `json:"replica_tls,omitempty"`
	// Register lets replicas register themselves: whoever may use the server, or the callers with register.
	Register bool `json:"register,omitempty"`
	// RegisterEventHosts are hosts beside its own on which a replica that registers may say that its KV events are; "*" = any.
	RegisterEventHosts []string `json:"register_event_hosts,omitempty"`
	// LoadPoll says how replicas are asked for their load that do not tell it; none = they are not asked.
	LoadPoll *LoadPoll `json:"load_poll,omitempty"`

	policy.Config
}

// Replicas are the entries of a fleet file.
type Replicas []fleet.Replica

// UnmarshalJSON implements [json.Unmarshaler], as strictly as a fleet file is read.
func (r *Replicas) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		return nil
	}
	file, err := json.Marshal(map[string]json.RawMessage{"replicas": raw})
	if err != nil {
		return err
	}
	replicas, err := fleet.Parse(file)
	*r = replicas
	return err
}

// DefaultConfig returns the config of a file that says nothing but deployments.
func DefaultConfig() Config {
	return Config{
		Listen:          "127.0.0.1:4770",
		LoadInterval:    policy.Duration(100 * time.Millisecond),
		StaleAfter:      policy.Duration(3 * time.Second),
		Lease:           policy.Duration(time.Minute),
		CountedHold:     policy.Duration(10 * time.Second),
		QueryHold:       policy.Duration(500 * time.Millisecond),
		RegisterLease:   policy.Duration(10 * time.Second),
		MaxMessageBytes: 4 << 20,
		MaxConnections:  20_000,
		MaxStreams:      1000,
		MaxWatchers:     10_000,
		MaxReservations: 50_000,
		MaxRegistered:   10_000,
		HTTP:            httpendpoint.DefaultConfig(),
	}
}

// DefaultResolveInterval is that of a deployment that has none of its own.
const DefaultResolveInterval = policy.Duration(30 * time.Second)

const maxConfigBytes = 64 << 20

// ParseConfig reads a config from YAML or JSON and checks all of it. What is returned has every default filled in. An
// error names the field.
func ParseConfig(data []byte) (*Config, error) {
	if len(data) > maxConfigBytes {
		return nil, fmt.Errorf("config: larger than %d MiB", maxConfigBytes>>20)
	}
	raw, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, fmt.Errorf("config: %s", strings.Join(strings.Fields(err.Error()), " "))
	}
	c := DefaultConfig()
	if err := c.decode(raw); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return &c, nil
}

// decode reads each deployment by itself, so that an error can name it.
func (c *Config) decode(raw []byte) error {
	type plain Config
	file := struct {
		*plain
		Deployments map[string]json.RawMessage `json:"deployments"`
	}{plain: (*plain)(c)}
	if err := policy.Decode(raw, &file); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "plain."))
	}
	c.Deployments = make(map[string]Deployment, len(file.Deployments))
	for _, name := range slices.Sorted(maps.Keys(file.Deployments)) {
		d := Deployment{ResolveInterval: DefaultResolveInterval}
		if err := policy.Decode(file.Deployments[name], &d); err != nil {
			// The policy's fields stand beside the others, not in a field Config.
			return fmt.Errorf("deployments.%s: %s", name, strings.TrimPrefix(strings.TrimPrefix(err.Error(), "Config."), "Adoption."))
		}
		d.Config = d.Config.WithDefaults()
		c.Deployments[name] = d
	}
	return nil
}

// Validate checks every field. The error names it.
func (c *Config) Validate() error {
	if err := c.checkAccess(); err != nil {
		return err
	}
	if err := c.Metrics.validate(); err != nil {
		return fmt.Errorf("metrics.%w", err)
	}
	if err := c.checkHTTP(); err != nil {
		return fmt.Errorf("http.%w", err)
	}
	for _, f := range []struct {
		name     string
		value    policy.Duration
		min, max time.Duration
	}{
		{"load_interval", c.LoadInterval, 10 * time.Millisecond, 10 * time.Second},
		{"stale_after", c.StaleAfter, time.Second, time.Hour},
		{"lease", c.Lease, time.Second, 24 * time.Hour},
		{"counted_hold", c.CountedHold, 0, time.Hour},
		{"query_hold", c.QueryHold, 0, time.Minute},
		{"register_lease", c.RegisterLease, time.Second, time.Hour},
	} {
		if f.value < policy.Duration(f.min) || f.value > policy.Duration(f.max) {
			return fmt.Errorf("%s: %v is not between %v and %v", f.name, f.value, f.min, f.max)
		}
	}
	for _, f := range []struct {
		name            string
		value, min, max int
	}{
		{"max_message_bytes", c.MaxMessageBytes, 1 << 10, 1 << 30},
		{"max_connections", c.MaxConnections, 1, 1 << 20},
		{"max_streams", c.MaxStreams, 1, 1 << 20},
		{"max_watchers", c.MaxWatchers, 1, 1 << 20},
		{"max_reservations", c.MaxReservations, 1, 1 << 24},
		{"max_registered", c.MaxRegistered, 1, 1 << 20},
	} {
		if f.value < f.min || f.value > f.max {
			return fmt.Errorf("%s: %d is not between %d and %d", f.name, f.value, f.min, f.max)
		}
	}
	if len(c.Deployments) == 0 {
		return errors.New("deployments: there is none")
	}
	var replicas []policy.Attributes
	for _, name := range slices.Sorted(maps.Keys(c.Deployments)) {
		d := c.Deployments[name]
		if err := checkName(name); err != nil {
			return fmt.Errorf("deployments: %w", err)
		}
		if err := d.validate(); err != nil {
			return fmt.Errorf("deployments.%s: %w", name, err)
		}
		for _, r := range d.Replicas {
			replicas = append(replicas, fleet.Declared(r.Attributes(), d.KVEvents, d.KVEventsReplay))
		}
	}
	if err := fleet.CheckListeners(replicas); err != nil {
		return fmt.Errorf("deployments: %w", err)
	}
	return nil
}

func (d *Deployment) validate() error {
	for i, m := range d.Models {
		if err := checkName(m); err != nil {
			return fmt.Errorf("models[%d]: %w", i, err)
		}
	}
	if d.Replicas == nil && d.Target == "" && !d.Register {
		return errors.New("it has no replicas: give replicas, target, or register: true")
	}
	if d.Target != "" {
		if _, _, err := parseTarget(d.Target); err != nil {
			return fmt.Errorf("target: %w", err)
		}
	}
	if slices.Contains(d.RegisterEventHosts, "") {
		return errors.New("register_event_hosts: one is empty")
	}
	if r := time.Duration(d.ResolveInterval); r < time.Second || r > time.Hour {
		return fmt.Errorf("resolve_interval: %v is not between 1s and 1h", r)
	}
	if err := d.ReplicaTLS.validate(); err != nil {
		return fmt.Errorf("replica_tls.%w", err)
	}
	if err := d.HealthCheck.validate(); err != nil {
		return fmt.Errorf("health_check.%w", err)
	}
	if d.LoadPoll != nil {
		if err := d.LoadPoll.validate(); err != nil {
			return fmt.Errorf("load_poll.%w", err)
		}
	}
	if d.KVEvents != "" || d.KVEventsReplay != "" {
		if _, err := fleet.ParseEventSource(policy.Attributes{KVEvents: d.KVEvents, KVEventsReplay: d.KVEventsReplay}); err != nil {
			return err
		}
	}
	if err := checkDialects(d.Dialects); err != nil {
		return fmt.Errorf("dialects: %w", err)
	}
	if err := tokenize.Check(d.Tokenizer); err != nil {
		return err
	}
	return d.Config.Validate()
}

// checkDialects refuses what clients would refuse that are sent it.
func checkDialects(raw json.RawMessage) error {
	own, err := dialect.ParseDialects(raw)
	if err == nil {
		_, err = dialect.NewTable(own...)
	}
	return err
}

// maxName bounds a name of a deployment, model, adapter or request, in bytes.
const maxName = 256

// checkName accepts what can stand in a target and in front of an adapter.
func checkName(name string) error {
	switch {
	case name == "" || len(name) > maxName:
		return fmt.Errorf("the name %.20q is empty or longer than %d bytes", name, maxName)
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ':' }):
		return fmt.Errorf("the name %q has a blank, a colon or something else than printable ASCII", name)
	}
	return nil
}
