package client

import (
	"encoding/json"
	"log/slog"

	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer"
)

// An Option configures the channel. Every Option is a [grpc.DialOption] too, so
// that both kinds can stand in one list for [New].
type Option interface {
	grpc.DialOption
	apply(*options)
}

type options struct {
	config string // the object under "warmpath" in the service config
	err    error
	meters metric.MeterProvider
	logger *slog.Logger
}

// option does nothing as a DialOption: New and DialOptions look for it.
type option struct {
	grpc.EmptyDialOption
	set func(*options)
}

func (o option) apply(to *options) { o.set(to) }

// WithPolicy names the policy. Its config is the policy's own struct, a
// json.RawMessage, or nil for the defaults. The default policy is
// prefix_cache_affinity. It sets the channel's default service config: one from
// the resolver comes before it.
func WithPolicy(name string, config any) Option {
	return option{set: func(o *options) {
		if config == nil {
			config = struct{}{}
		}
		raw, err := json.Marshal(map[string]any{"policy": map[string]any{name: config}})
		o.config, o.err = string(raw), err
	}}
}

// WithConfig gives the whole configuration, the JSON object under "warmpath" in
// a service config; see [github.com/warmpath/warmpath/balancer/policy.Config] for its fields.
func WithConfig(object string) Option {
	return option{set: func(o *options) { o.config, o.err = object, nil }}
}

// WithMeterProvider records metrics through mp instead of the global provider.
func WithMeterProvider(mp metric.MeterProvider) Option {
	return option{set: func(o *options) { o.meters = mp }}
}

// WithLogger writes the rare log line to l instead of slog's default.
func WithLogger(l *slog.Logger) Option {
	return option{set: func(o *options) { o.logger = l }}
}

func (o *options) serviceConfig() (string, error) {
	if o.err != nil {
		return "", o.err
	}
	object := o.config
	if object == "" {
		object = "{}"
	}
	if err := balancer.Check(object); err != nil {
		return "", err
	}
	return `{"loadBalancingConfig":[{"` + balancer.Name + `":` + object + `}]}`, nil
}
