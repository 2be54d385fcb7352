package balancer

import (
	"encoding/json"
	"fmt"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/endpointsharding"
	"google.golang.org/grpc/balancer/lazy"
	"google.golang.org/grpc/balancer/pickfirst"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
)

// Name is the name of the policy in a service config:
//
//	{"loadBalancingConfig":[{"warmpath":{"policy":{"prefix_cache_affinity":{}}}}]}
const Name = "warmpath"

// EagerConnections is the largest fleet to which every connection is opened at once.
const EagerConnections = 1000

func init() { balancer.Register(builder{}) }

type builder struct{}

func (builder) Name() string { return Name }

func (builder) Build(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	b := &lb{ClientConn: cc, opts: opts, endpoints: resolver.NewEndpointMap[*endpoint]()}
	b.child = endpointsharding.NewBalancer(b, opts, b.buildChild, endpointsharding.Options{DisableAutoReconnect: true})
	return b
}

// buildChild makes the balancer of one endpoint. It runs inside
// child.UpdateClientConnState, so after b.eager was set for that update.
func (b *lb) buildChild(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	pf := balancer.Get(pickfirst.Name)
	if b.eager.Load() {
		return pf.Build(cc, opts)
	}
	return lazy.NewBalancer(cc, opts, pf.Build)
}

// lbConfig is a parsed service config.
type lbConfig struct {
	serviceconfig.LoadBalancingConfig
	*policy.Config
	dialects *dialect.Table
	sessions *dialect.SessionKeys // nil = none
	key      string               // equal for equal configs
}

// MarshalJSON writes the config as it was parsed: the xDS policies above this one
// hand it on as text.
func (c *lbConfig) MarshalJSON() ([]byte, error) { return []byte(c.key), nil }

// ParseConfig refuses, at dial or when a service config arrives, what would not
// work later; the error names the field.
func (builder) ParseConfig(raw json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	return parseConfig(raw)
}

// Check says what is wrong with the object under "warmpath" in a service config,
// naming the field.
func Check(object string) error {
	_, err := parseConfig(json.RawMessage(object))
	return err
}

func parseConfig(raw json.RawMessage) (*lbConfig, error) {
	c, err := policy.ParseConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	own, err := dialect.ParseDialects(c.Dialects)
	if err != nil {
		return nil, fmt.Errorf("%s: dialects: %w", Name, err)
	}
	table, err := dialect.NewTable(own...)
	if err != nil {
		return nil, fmt.Errorf("%s: dialects: %w", Name, err)
	}
	key, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	parsed := &lbConfig{Config: c, dialects: table, key: string(key)}
	if len(c.SessionKeys) > 0 {
		if parsed.sessions, err = dialect.NewSessionKeys(c.SessionKeys...); err != nil {
			return nil, fmt.Errorf("%s: %w", Name, err)
		}
	}
	return parsed, nil
}
