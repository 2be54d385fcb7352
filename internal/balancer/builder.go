// Package balancer is the gRPC load-balancing policy "warmpath": import package
// client, which registers it, and name it in a service config.
//
// The rule. Every endpoint of the resolver gets a pick_first child of its own,
// so one connection; the picker asks the [router.Router] which replica the call
// goes to and reserves it there until the call ends. The policy's algorithm, its
// queue and its load live in the Router; this package only reports what is
// connected and hands its answers to gRPC.
//
// With the interceptors of package client the request key comes from the
// message. Without them a call is routed by its metadata: session affinity works,
// policies that need the prompt degrade, which is logged once.
//
// Up to [EagerConnections] connections are opened at once, one to each replica. In a larger fleet they are opened when
// first picked, so that every client can reach the replica that all agree on without holding a connection to each.
//
// Complexity. A pick costs what the policy costs plus two look-ups in the
// context. A change of connectivity costs O(replicas).
//
// Guarantees. Every change of connectivity publishes a picker at once. What was
// learned survives new pickers, re-resolution and, with package client, the
// channel's idleness. Works under any resolver; endpoints that carry no
// attributes of ours are known by their address.
//
// Source: gRFC A61 (endpointsharding, pick_first under health listeners), A62
// (pick_first).
package balancer

import (
	"encoding/json"
	"fmt"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/serviceconfig"

	"github.com/warmpath/warmpath/balancer/policy"
	_ "github.com/warmpath/warmpath/internal/builtin"
	"github.com/warmpath/warmpath/internal/kvevents"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/tokenize"
)

// Name is the name of the policy in a service config:
//
//	{"loadBalancingConfig":[{"warmpath":{"policy":{"kv_aware":{}}}}]}
const Name = "warmpath"

// EagerConnections is up to how many connections are all opened at once.
const EagerConnections = 1000

func init() { balancer.Register(builder{}) }

type builder struct{}

func (builder) Name() string { return Name }

func (builder) Build(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	b := newLB()
	b.ClientConn, b.opts, b.target = cc, opts, opts.Target.String()
	return b
}

// lbConfig is a parsed service config.
type lbConfig struct {
	serviceconfig.LoadBalancingConfig
	*policy.Config
	dialects *requestkey.Table
	sessions *requestkey.SessionKeys // nil = none
	key      string                  // equal for configs that can share a Router
	text     string                  // as it was parsed
}

// MarshalJSON writes the config as it was parsed: the xDS policies above this one
// hand it on as text.
func (c *lbConfig) MarshalJSON() ([]byte, error) { return []byte(c.text), nil }

// ParseConfig refuses, at dial or when a service config arrives, what would not
// work later; the error names the field.
func (builder) ParseConfig(raw json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	c, err := parseConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	return c, nil
}

// Check reports what is wrong with the object under "warmpath" in a service config,
// naming the field.
func Check(object string) error {
	_, err := builder{}.ParseConfig(json.RawMessage(object))
	return err
}

func parseConfig(raw json.RawMessage) (*lbConfig, error) {
	c, err := policy.ParseConfig(raw)
	if err != nil {
		return nil, err
	}
	parsed := &lbConfig{Config: c}
	own, err := requestkey.ParseDialects(c.Dialects)
	if err != nil {
		return nil, err
	}
	if parsed.dialects, err = requestkey.NewTable(own...); err != nil {
		return nil, err
	}
	if c.KVEvents != "" || c.KVEventsReplay != "" {
		a := policy.Attributes{KVEvents: c.KVEvents, KVEventsReplay: c.KVEventsReplay}
		if _, err := kvevents.ParseSource(a); err != nil {
			return nil, err
		}
	}
	if err := checkLoadPoll(c.LoadPoll); err != nil {
		return nil, err
	}
	if err := tokenize.Check(c.Tokenizer); err != nil {
		return nil, err
	}
	if len(c.SessionKeys) > 0 {
		parsed.sessions = requestkey.NewSessionKeys(c.SessionKeys...)
	}
	if parsed.text, err = marshal(c); err == nil {
		parsed.key, err = marshal(router.Lasting(*c))
	}
	return parsed, err
}

func marshal(v any) (string, error) {
	text, err := json.Marshal(v)
	return string(text), err
}
