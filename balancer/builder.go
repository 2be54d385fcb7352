package balancer

import (
	"encoding/json"
	"fmt"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"

	"github.com/warmpath/warmpath/balancer/policy"
	_ "github.com/warmpath/warmpath/internal/builtin"
	"github.com/warmpath/warmpath/internal/kvevents"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/tokenize"
)

// Name is the name of the policy in a service config:
//
//	{"loadBalancingConfig":[{"warmpath":{"policy":{"prefix_cache_affinity":{}}}}]}
const Name = "warmpath"

// EagerConnections is up to how many connections are all opened at once.
const EagerConnections = 1000

func init() { balancer.Register(builder{}) }

type builder struct{}

func (builder) Name() string { return Name }

func (builder) Build(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	b := &lb{ClientConn: cc, opts: opts}
	b.notices.target = opts.Target.String()
	b.endpoints.all = resolver.NewEndpointMap[*endpoint]()
	b.aborts = &aborts{connections: &b.endpoints.connections}
	return b
}

// lbConfig is a parsed service config.
type lbConfig struct {
	serviceconfig.LoadBalancingConfig
	*policy.Config
	dialects  *requestkey.Table
	sessions  *requestkey.SessionKeys // nil = none
	tokenizer *tokenize.Config        // nil = none
	key       string                  // equal for configs that can share a Router
	text      string                  // as it was parsed
}

// MarshalJSON writes the config as it was parsed: the xDS policies above this one
// hand it on as text.
func (c *lbConfig) MarshalJSON() ([]byte, error) { return []byte(c.text), nil }

// ParseConfig refuses, at dial or when a service config arrives, what would not
// work later; the error names the field.
func (builder) ParseConfig(raw json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	return parseConfig(raw)
}

// Check reports what is wrong with the object under "warmpath" in a service config,
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
	own, err := requestkey.ParseDialects(c.Dialects)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	table, err := requestkey.NewTable(own...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	if c.KVEvents != "" || c.KVEventsReplay != "" {
		a := policy.Attributes{KVEvents: c.KVEvents, KVEventsReplay: c.KVEventsReplay}
		if _, err := kvevents.ParseSource(a); err != nil {
			return nil, fmt.Errorf("%s: %w", Name, err)
		}
	}
	if err := tokenize.Check(c.Tokenizer); err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	key, err := json.Marshal(c.Routing())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	parsed := &lbConfig{Config: c, dialects: table, key: string(key), text: string(text)}
	if parsed.tokenizer, err = tokenize.ParseConfig(c.Tokenizer); err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	if len(c.SessionKeys) > 0 {
		if parsed.sessions, err = requestkey.NewSessionKeys(c.SessionKeys...); err != nil {
			return nil, fmt.Errorf("%s: %w", Name, err)
		}
	}
	return parsed, nil
}
