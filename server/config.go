package server

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/admission"
	"github.com/warmpath/warmpath/internal/cluster"
	"github.com/warmpath/warmpath/internal/eventsource"
	"github.com/warmpath/warmpath/internal/httpendpoint"
	"github.com/warmpath/warmpath/internal/loadpoll"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/strict"
	"github.com/warmpath/warmpath/internal/tokenize"
)

// Config is what `warmpath serve` reads. Only Deployments are needed; a field that is zero has its default.
type Config struct {
	// Listen is the address to listen on, host:port; default 127.0.0.1:4770. Read once.
	Listen string `json:"listen,omitempty"`
	// AllowPlaintext allows listening elsewhere than on the loopback without TLS. Read once.
	AllowPlaintext bool `json:"allow_plaintext,omitempty"`
	// TLS is the server's certificate, and which certificates clients present; none = plaintext. The files' names are
	// read once.
	TLS *TLS `json:"tls,omitempty"`
	// Principals may use the server, each with its permissions and bounds; none = every call is unrestricted. A health
	// check of the whole server needs no principal.
	Principals []Principal `json:"principals,omitempty"`
	// LoadInterval is how often watching clients are sent the load; 10ms to 10s, default 100ms.
	LoadInterval policy.Duration `json:"load_interval,omitempty"`
	// MaxConnections bounds the connections, of which one host may have half; more are closed at once; default 20,000.
	// Half of it bounds the calls under way of one principal, and the clients that watch one deployment. Read once.
	MaxConnections int `json:"max_connections,omitempty"`
	// MaxReservations bounds the picks that add to the load of one deployment, of all modes; each takes about 5 KB with
	// long prompts; default 50,000. One principal may have half of it in all deployments.
	MaxReservations int `json:"max_reservations,omitempty"`
	// Metrics is the address of a page for Prometheus, /metrics; empty = none. OpenTelemetry's environment variables set
	// OTLP. Read once.
	Metrics string `json:"metrics,omitempty"`
	// HTTP is the HTTP endpoint. Read once.
	HTTP httpendpoint.Config `json:"http,omitzero"`
	// Cluster joins several servers to one view; none = the server is alone. Read once.
	Cluster cluster.Config `json:"cluster,omitzero"`
	// Deployments are the fleets; one or more. A name has no blank and no colon.
	Deployments map[string]Deployment `json:"deployments"`
}

// A Deployment is one fleet with one policy. Beside its own fields it has those of [policy.Config].
type Deployment struct {
	// Models are further names by which requests mean this deployment.
	Models []string `json:"models,omitempty"`
	// Replicas are the fixed members, as in a fleet file.
	Replicas Replicas `json:"replicas,omitempty"`
	// Target is a gRPC target like dns:///host:port, all of whose addresses are replicas.
	Target string `json:"target,omitempty"`
	// HealthCheck is how often the replicas that do not register are probed by grpc.health.v1's Check of the whole
	// server, 100ms to 1h; 0 = never. Clients are sent a replica that does not serve as draining, until it serves again:
	// after NOT_SERVING, or after two checks in a row without an answer within a second. Where no replica serves, all
	// stay in use: then the fault is rather in the check.
	HealthCheck policy.Duration `json:"health_check,omitempty"`
	// LoadPages are the pages of load_poll for replicas whose page is elsewhere, by id; HOST and PORT as in load_poll.
	LoadPages map[string]string `json:"load_pages,omitempty"`
	// ReplicaTLS is for the server's own connections to replicas: health checks, load (GetLoads), KV events; none =
	// plaintext.
	ReplicaTLS *TLS `json:"replica_tls,omitempty"`
	// Register lets replicas register themselves, by principals with register where there are principals.
	Register bool `json:"register,omitempty"`
	// RegisterEventHosts are the hosts beside its own that a registering replica may name as the source of its KV events;
	// "*" = any.
	RegisterEventHosts []string `json:"register_event_hosts,omitempty"`

	policy.Config
}

// Replicas are the entries of a fleet file.
type Replicas []policy.Attributes

// UnmarshalJSON implements [json.Unmarshaler], as strictly as a fleet file is read.
func (r *Replicas) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		return nil
	}
	replicas, err := admission.Parse(slices.Concat([]byte(`{"replicas":`), raw, []byte("}")))
	*r = replicas
	return err
}

// withDefaults returns a copy with every default filled in. The caller may change its principals without an effect.
func (c Config) withDefaults() Config {
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:4770")
	c.LoadInterval = cmp.Or(c.LoadInterval, policy.Duration(100*time.Millisecond))
	c.MaxConnections = cmp.Or(c.MaxConnections, 20_000)
	c.MaxReservations = cmp.Or(c.MaxReservations, 50_000)
	c.HTTP = c.HTTP.WithDefaults()
	c.Principals = slices.Clone(c.Principals)
	c.Deployments = maps.Clone(c.Deployments)
	for name, d := range c.Deployments {
		d.Config = d.Config.WithDefaults()
		c.Deployments[name] = d
	}
	return c
}

const maxConfigBytes = 64 << 20

// ParseConfig reads a config from YAML or JSON, checks all of it and fills in every default. An error names the field.
func ParseConfig(data []byte) (*Config, error) {
	if len(data) > maxConfigBytes {
		return nil, fmt.Errorf("config: larger than %d MiB", maxConfigBytes>>20)
	}
	raw, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, fmt.Errorf("config: %s", strings.Join(strings.Fields(err.Error()), " "))
	}
	var read Config
	if err := policy.Decode(raw, &read); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	c := read.withDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return &c, nil
}

// Validate checks every field. The error names it.
func (c *Config) Validate() error {
	full := c.withDefaults()
	return cmp.Or(full.checkServer(), full.checkDeployments())
}

// maxWatchers bounds the clients that watch one deployment, and the calls under way of one principal.
func (c *Config) maxWatchers() int { return (c.MaxConnections + 1) / 2 }

func (c *Config) checkDeployments() error {
	if len(c.Deployments) == 0 {
		return errors.New("deployments: there is none")
	}
	var replicas []policy.Attributes
	for _, name := range slices.Sorted(maps.Keys(c.Deployments)) {
		d := c.Deployments[name]
		err := cmp.Or(strict.In("deployments: ", checkName(name)), strict.In("deployments."+name+": ", d.validate()))
		if err != nil {
			return err
		}
		for _, r := range d.Replicas {
			replicas = append(replicas, eventsource.Declared(r, d.KVEvents, d.KVEventsReplay))
		}
	}
	return strict.In("deployments: ", admission.CheckListeners(replicas))
}

func (d *Deployment) validate() error {
	for i, m := range d.Models {
		if err := checkModel(m); err != nil {
			return fmt.Errorf("models[%d]: %w", i, err)
		}
	}
	var target, events, load error
	if d.Target != "" {
		_, _, target = parseTarget(d.Target)
	}
	if d.KVEvents != "" || d.KVEventsReplay != "" {
		_, events = eventsource.Parse(policy.Attributes{KVEvents: d.KVEvents, KVEventsReplay: d.KVEventsReplay})
	}
	if d.LoadPoll != "" || len(d.LoadPages) > 0 {
		_, load = loadpoll.Parse(d.LoadPoll, d.LoadPages)
	}
	_, dialects := requestkey.ParseDialects(d.Dialects)
	const longest = policy.Duration(time.Hour)
	return cmp.Or(
		strict.Want(d.Replicas != nil || d.Target != "" || d.Register,
			"it has no replicas: give replicas, target, or register: true"),
		strict.In("target: ", target),
		strict.Want(!slices.Contains(d.RegisterEventHosts, ""), "register_event_hosts: one is empty"),
		events, strict.In("dialects: ", dialects),
		strict.Within("health_check", cmp.Or(d.HealthCheck, longest), policy.Duration(100*time.Millisecond), longest),
		d.ReplicaTLS.validateForReplicas(), load,
		tokenize.Check(d.Tokenizer), d.Config.Validate(),
	)
}

// maxName bounds a name of a deployment, model, adapter or request, in bytes.
const maxName = 256

// checkName accepts a name that can stand in a target and in front of an adapter.
func checkName(name string) error {
	return cmp.Or(checkModel(name), strict.Want(!strings.Contains(name, ":"), "the name %q has a colon", name))
}

// checkModel accepts the name of a model, which may have a colon.
func checkModel(name string) error {
	switch {
	case name == "" || len(name) > maxName:
		return fmt.Errorf("the name %.20q is empty or longer than %d bytes", name, maxName)
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return fmt.Errorf("the name %q has a blank or something else than printable ASCII", name)
	}
	return nil
}

// checkServer checks all but the deployments. The error names the field.
func (c *Config) checkServer() error {
	return cmp.Or(
		c.checkAddress("listen", c.Listen, c.TLS != nil, "there is no TLS"),
		strict.In("tls.", c.TLS.validate()),
		strict.In("principals", c.checkPrincipals()),
		c.checkAddress("metrics", c.Metrics, false, "the page has neither TLS nor principals"),
		c.checkAddress("http.listen", c.HTTP.Listen, c.TLS != nil, "there is no TLS"),
		strict.In("http.", c.HTTP.Validate()),
		strict.Within("load_interval", c.LoadInterval,
			policy.Duration(10*time.Millisecond), policy.Duration(10*time.Second)),
		strict.Within("max_connections", c.MaxConnections, 1, 1<<20),
		strict.Within("max_reservations", c.MaxReservations, 1, 1<<24),
		strict.In("cluster.", c.Cluster.Validate()),
	)
}

// checkAddress refuses an address, "" = none, that other hosts reach without security. missing is what is not set.
func (c *Config) checkAddress(field, address string, secure bool, missing string) error {
	if address == "" {
		return nil
	}
	local, err := onLoopback(address)
	if err == nil && !local && !secure && !c.AllowPlaintext {
		err = fmt.Errorf("%s is not on the loopback, and %s; allow_plaintext permits it if the network is trusted",
			address, missing)
	}
	return strict.In(field+": ", err)
}

// onLoopback reports whether only this host reaches an address, host:port.
func onLoopback(address string) (bool, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return false, fmt.Errorf("%q is not host:port", address)
	}
	if _, err := net.LookupPort("tcp", cmp.Or(port, "?")); err != nil {
		return false, fmt.Errorf("%q is no port", port)
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback(), nil
}

// CheckFiles reads the files that the config names: certificates and tokens. The error names the field.
func (c *Config) CheckFiles() error {
	if _, err := c.TLS.load("tls"); err != nil {
		return err
	}
	for name, d := range c.Deployments {
		if _, err := d.ReplicaTLS.load("replica_tls"); err != nil {
			return fmt.Errorf("deployments.%s: %w", name, err)
		}
	}
	return newAuthenticator(nil).take(c)
}

// readOnce are the fields of a config that only New reads.
var readOnce = []string{"Listen", "AllowPlaintext", "TLS", "Metrics", "HTTP", "MaxConnections", "Cluster"}

// warnReadOnce logs which changed fields of another config are not in force, since they are read once.
func (s *Server) warnReadOnce(c *Config) {
	was, now := reflect.ValueOf(s.first), reflect.ValueOf(*c)
	for _, name := range readOnce {
		if reflect.DeepEqual(was.FieldByName(name).Interface(), now.FieldByName(name).Interface()) {
			continue
		}
		f, _ := was.Type().FieldByName(name)
		field, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		s.log.Warn("warmpath: a field that is read once has changed: the new value counts after a restart", "field", field)
	}
}
