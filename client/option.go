package client

import (
	"encoding/json"
	"fmt"
	"log/slog"

	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc"
	grpcresolver "google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/balancer"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/target"
	"github.com/warmpath/warmpath/resolver"
)

// An Option configures the channel. Every Option is a [grpc.DialOption] too, so
// that both kinds can stand in one list for [New].
type Option interface {
	grpc.DialOption
	apply(*options)
}

type options struct {
	object   string // the object under "warmpath" in the service config
	policy   policy.NamedConfig
	dialects []dialect.Dialect
	meters   metric.MeterProvider
	logger   *slog.Logger
	server   []grpc.DialOption // of look-aside servers
	listed   bool              // the list of DialOptions is among them
}

// option does nothing as a DialOption: New and DialOptions look for it.
type option struct {
	grpc.EmptyDialOption
	set func(*options)
}

func (o option) apply(to *options) { o.set(to) }

// WithPolicy selects the policy by its config: kvaware.Config{} is the default policy with the default config.
// It takes precedence over WithConfig. A service config from the resolver takes precedence over both.
func WithPolicy(config policy.NamedConfig) Option {
	return option{set: func(o *options) { o.policy = config }}
}

// WithConfig gives the whole configuration, the JSON object under "warmpath" in
// a service config; see [policy.Config] for its fields.
func WithConfig(object string) Option {
	return option{set: func(o *options) { o.object = object }}
}

// WithDialects adds dialects, for services that are not built in, to those of WithConfig. A
// config from the resolver or a look-aside server replaces them only for the methods that
// it names.
func WithDialects(d ...dialect.Dialect) Option {
	return option{set: func(o *options) { o.dialects = append(o.dialects, d...) }}
}

// WithMeterProvider records metrics through mp instead of the global provider.
func WithMeterProvider(mp metric.MeterProvider) Option {
	return option{set: func(o *options) { o.meters = mp }}
}

// WithLogger logs to l instead of slog's default. A channel logs little, and nothing for each call.
func WithLogger(l *slog.Logger) Option {
	return option{set: func(o *options) { o.logger = l }}
}

// WithServerDialOptions sets how look-aside servers are reached, the targets
// warmpath://server:port/deployment: credentials, tokens, interceptors. By default they are reached
// with the channel's transport credentials and dialer, and without its per-call credentials.
func WithServerDialOptions(opts ...grpc.DialOption) Option {
	return option{set: func(o *options) { o.server = append(o.server, opts...) }}
}

// resolvers returns the builders of resolvers in whose place the registered ones will not do.
func (o *options) resolvers() (own []grpcresolver.Builder) {
	if o.logger != nil {
		for _, i := range target.Imported {
			own = append(own, i.NewBuilder(o.logger))
		}
	}
	if o.logger != nil || len(o.server) > 0 {
		own = append(own,
			resolver.NewBuilder(resolver.WithServerDialOptions(o.server...), resolver.WithServerLogger(o.logger)))
	}
	return own
}

// config puts the options together, in whatever order they came, to the object under "warmpath" in the service config.
func (o *options) config() (json.RawMessage, error) {
	object := json.RawMessage(o.object)
	if o.policy != nil || len(o.dialects) > 0 {
		var err error
		if object, err = o.merge(object); err != nil {
			return nil, fmt.Errorf("warmpath: config: %w", err)
		}
	}
	if len(object) == 0 {
		object = json.RawMessage("{}")
	}
	return object, balancer.Check(string(object))
}

func (o *options) merge(object json.RawMessage) (json.RawMessage, error) {
	var c policy.Config
	if err := policy.Decode(object, &c); err != nil {
		return nil, err
	}
	if o.policy != nil {
		raw, err := json.Marshal(o.policy)
		if err != nil {
			return nil, fmt.Errorf("policy.%s: %w", o.policy.Name(), err)
		}
		c.Policy = policy.Selection{Name: o.policy.Name(), Config: raw}
	}
	if len(o.dialects) > 0 {
		all, err := requestkey.ParseDialects(c.Dialects)
		if err != nil {
			return nil, err
		}
		if c.Dialects, err = json.Marshal(append(all, o.dialects...)); err != nil {
			return nil, err
		}
	}
	return json.Marshal(c)
}
