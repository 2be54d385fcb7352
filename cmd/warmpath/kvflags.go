package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath/internal/lab/enginesim/kvpublish"
)

// kvFlags say how an engine publishes its KV events.
type kvFlags struct {
	events, replay string
}

func (k *kvFlags) add(f *pflag.FlagSet) {
	f.StringVar(&k.events, "kv-events", "",
		"publish KV events through `gRPC`, the value grpc, and over ZeroMQ: tcp://*:PORT binds, tcp://HOST:PORT connects")
	f.StringVar(&k.replay, "kv-events-replay", "",
		"answer for KV events that were missed at this `endpoint`, tcp://*:PORT")
}

// check reads the flags.
func (k *kvFlags) check() error {
	if _, _, err := endpoint(k.zmq()); err != nil {
		return usagef("--kv-events: %w", err)
	}
	if _, binds, err := endpoint(k.replay); err != nil || k.replay != "" && !binds {
		return usagef("--kv-events-replay: %q is not tcp://*:PORT", k.replay)
	}
	if k.replay != "" && k.zmq() == "" {
		return usagef("--kv-events-replay needs --kv-events tcp://…")
	}
	return nil
}

// zmq is the ZeroMQ endpoint, "" if there is to be none.
func (k *kvFlags) zmq() string {
	if k.events == "grpc" {
		return ""
	}
	return k.events
}

// log is what keeps the events, nil if none are wanted.
func (k *kvFlags) log() *kvpublish.Log {
	if k.events == "" {
		return nil
	}
	return kvpublish.NewLog(0)
}

// endpoint is the address of a ZeroMQ endpoint, and whether it is one to listen on; none for "".
func endpoint(s string) (address string, binds bool, err error) {
	if s == "" {
		return "", false, nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "tcp" || u.Port() == "" || u.Path != "" || u.RawQuery != "" {
		return "", false, fmt.Errorf("%q is neither tcp://*:PORT nor tcp://HOST:PORT", s)
	}
	if rest, ok := strings.CutPrefix(u.Host, "*"); ok {
		return rest, true, nil
	}
	return u.Host, false, nil
}

// publish starts to publish a log, if that is wanted, and prints where.
func (k *kvFlags) publish(ctx context.Context, log *kvpublish.Log) (stop func(), where string, err error) {
	if k.zmq() == "" {
		return func() {}, "", nil
	}
	var c kvpublish.Config
	if c.Events, c.Connect, err = listen(ctx, k.events); err != nil {
		return nil, "", err
	}
	if c.Replay, _, err = listen(ctx, k.replay); err != nil {
		if c.Events != nil {
			c.Events.Close()
		}
		return nil, "", err
	}
	where = c.Connect
	if c.Events != nil {
		where = c.Events.Addr().String()
	}
	if c.Replay != nil {
		where += ", replay on " + c.Replay.Addr().String()
	}
	return kvpublish.Publish(log, c).Close, where, nil
}

// listen listens where an endpoint binds, else it returns the address to connect to.
func listen(ctx context.Context, s string) (net.Listener, string, error) {
	address, binds, err := endpoint(s)
	if err != nil || !binds {
		return nil, address, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	return l, "", err
}
