package main

import (
	"context"
	"net"
	"strings"

	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath/internal/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/internal/lab/enginesim/kvpublish"
)

// kvFlags say how an engine publishes its KV events.
type kvFlags struct{ events, replay string }

func (k *kvFlags) add(f *pflag.FlagSet) {
	f.StringVar(&k.events, "kv-events", "", "publish KV events: `grpc`, or tcp://*:PORT, over ZeroMQ and gRPC")
	f.StringVar(&k.replay, "kv-events-replay", "", "replay missed KV events at this `endpoint`, tcp://*:PORT")
}

// check reads the flags.
func (k *kvFlags) check() error {
	for flag, value := range map[string]string{"kv-events": k.zmq(), "kv-events-replay": k.replay} {
		rest, ok := strings.CutPrefix(value, binds)
		if _, _, err := net.SplitHostPort(rest); value != "" && (!ok || err != nil) {
			return usagef("--%s: %q is not tcp://*:PORT", flag, value)
		}
	}
	if k.replay != "" && k.zmq() == "" {
		return usagef("--kv-events-replay needs --kv-events tcp://…")
	}
	return nil
}

// binds begins a ZeroMQ endpoint to listen on.
const binds = "tcp://*"

// zmq is the ZeroMQ endpoint, "" if there is to be none.
func (k *kvFlags) zmq() string {
	if k.events == "grpc" {
		return ""
	}
	return k.events
}

// publish starts to publish a log, if that is wanted, and prints where.
func (k *kvFlags) publish(ctx context.Context, log *kvpublish.Log) (stop func(), where string, err error) {
	if k.zmq() == "" {
		return func() {}, "", nil
	}
	var c kvpublish.Config
	if c.Events, err = listen(ctx, k.events); err != nil {
		return nil, "", err
	}
	where = c.Events.Addr().String()
	if k.replay != "" {
		if c.Replay, err = listen(ctx, k.replay); err != nil {
			c.Events.Close()
			return nil, "", err
		}
		where += ", replay on " + c.Replay.Addr().String()
	}
	return kvpublish.Publish(log, c).Close, where, nil
}

func listen(ctx context.Context, endpoint string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", strings.TrimPrefix(endpoint, binds))
}

// legFlags make an engine one of prefill and decode engines.
type legFlags struct{ grpcserver.Disaggregation }

func (l *legFlags) add(f *pflag.FlagSet) {
	f.StringVar((*string)(&l.Role), "role", "", "with prefill and decode apart: `both`, prefill, decode")
	f.StringVar((*string)(&l.Connector), "kv-connector", string(grpcserver.NIXL),
		"how the legs of a request meet: `nixl` and mooncake as in vLLM, rooms as in SGLang")
	f.StringVar(&l.Listen, "kv-listen", "", "the `address` where decode engines ask a prefill engine for KV, host:port")
}

func (l *legFlags) check() error {
	if l.Role == "" {
		return nil
	}
	return first(oneOf("role", string(l.Role), grpcserver.Roles),
		oneOf("kv-connector", string(l.Connector), grpcserver.Connectors))
}
