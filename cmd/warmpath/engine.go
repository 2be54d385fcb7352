package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/lab/enginesim/kvpublish"
)

// addEngine adds the flags of an engine.
func addEngine(f *pflag.FlagSet, preset *string, kvTokens *int) {
	f.StringVar(preset, "preset", enginesim.Presets[0].Name, "the `engine` to simulate: "+presets())
	f.IntVar(kvTokens, "kv-tokens", 0, "size of the KV cache in `tokens`; 0 means the preset's")
}

func presets() string { return strings.Join(enginesim.PresetNames(), ", ") }

// checkEngine builds an engine, throws it away, and fills in the defaults of its config.
func checkEngine(c *enginesim.Config) error {
	if err := first(oneOf("preset", c.Preset, enginesim.PresetNames()), atLeast("kv-tokens", c.KVTokens, 0)); err != nil {
		return err
	}
	engine, err := enginesim.New(*c)
	if err != nil {
		return usagef("--preset, --kv-tokens: %w", err)
	}
	*c = engine.Config()
	return nil
}

type engineRun struct {
	grpcserver.Config
	kv      kvFlags
	legs    grpcserver.Disaggregation // without a role it is not used
	listen  string
	grace   time.Duration
	metrics string
}

func newEngine() *cobra.Command {
	var r engineRun
	c := &cobra.Command{
		Use:   "engine --listen ADDR",
		Short: "Serve a simulated LLM engine with vLLM's gRPC protocols",
		RunE:  func(c *cobra.Command, _ []string) error { return r.run(c) },
	}
	f := c.Flags()
	addEngine(f, &r.Engine.Preset, &r.Engine.KVTokens)
	r.kv.add(f)
	r.addLegs(f)
	f.StringVar(&r.listen, "listen", "", "the `address` to listen on, host:port; port 0 takes a free one")
	f.Float64Var(&r.Speed, "speed", 1, "seconds of engine time in a second")
	f.BoolVar(&r.EarlyHeaders, "early-headers", false, "send response headers before the first token, as Rust servers do")
	f.StringVar(&r.ServedModel, "model", "", "`name` of the model; requests for others are refused")
	f.IntVar(&r.MaxOngoing, "max-ongoing", 0, "refuse requests beyond this `number`; 0 means none")
	f.StringVar(&r.metrics, "metrics", "", "serve vLLM's Prometheus page at this `address`, host:port")
	f.DurationVar(&r.grace, "grace", 10*time.Second, "how long requests under way may take at the end")
	return c
}

// run serves until the command is interrupted.
func (r *engineRun) run(c *cobra.Command) error {
	if err := first(required(c, "listen"), checkListen(r.listen), atLeast("max-ongoing", r.MaxOngoing, 0),
		positive("speed", r.Speed), r.kv.check(), r.checkLegs(), checkEngine(&r.Engine)); err != nil {
		return err
	}
	lis, err := new(net.ListenConfig).Listen(c.Context(), "tcp", r.listen)
	if err != nil {
		return err
	}
	if r.kv.events != "" {
		r.KVEvents = kvpublish.NewLog(0)
	}
	s, err := grpcserver.Start(lis, r.Config)
	if err != nil {
		return err
	}
	stop, where, err := r.kv.publish(c.Context(), r.KVEvents)
	if err != nil {
		s.Kill()
		return err
	}
	defer stop()
	fmt.Fprintf(c.OutOrStdout(), "%s engine with %d tokens of KV cache, %g times real time, listens on %s\n",
		r.Engine.Preset, r.Engine.KVTokens, r.Speed, s.Addr())
	if r.Disaggregation != nil {
		fmt.Fprintf(c.OutOrStdout(), "role %s, bootstrap address %s, engine id %s\n", r.legs.Role, s.KVAddr(), s.KVEngineID())
	}
	if where != "" {
		fmt.Fprintf(c.OutOrStdout(), "KV events on %s\n", where)
	}
	if r.metrics != "" {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /metrics", s.ServeMetrics)
		at, end, err := serveHTTP(c.Context(), r.metrics, mux, 0)
		if err != nil {
			s.Kill()
			return usagef("--metrics: %w", err)
		}
		defer end(context.WithoutCancel(c.Context())) //nolint:errcheck // It is closed at the end in any case.
		fmt.Fprintf(c.OutOrStdout(), "metrics on http://%s/metrics\n", at)
	}
	<-c.Context().Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), r.grace)
	defer cancel()
	s.Stop(ctx)
	st := s.Stats()
	fmt.Fprintf(c.ErrOrStderr(), "served %d requests, %d of %d prompt tokens from the cache, %d output tokens\n",
		st.Engine.Finished, st.Engine.CachedTokens, st.Engine.PromptTokens, st.Engine.OutputTokens)
	return nil
}

func checkListen(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return usagef("--listen: %q is not host:port", addr)
	}
	return nil
}

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

// addLegs adds the flags that make an engine one of prefill and decode engines.
func (r *engineRun) addLegs(f *pflag.FlagSet) {
	l := &r.legs
	f.StringVar((*string)(&l.Role), "role", "", "with prefill and decode apart: `both`, prefill, decode")
	f.StringVar((*string)(&l.Connector), "kv-connector", string(grpcserver.NIXL),
		"how the legs of a request meet: `nixl` and mooncake as in vLLM, rooms as in SGLang")
	f.StringVar(&l.Listen, "kv-listen", "", "the `address` where decode engines ask a prefill engine for KV, host:port")
}

func (r *engineRun) checkLegs() error {
	if r.legs.Role == "" {
		return nil
	}
	r.Disaggregation = &r.legs
	return first(oneOf("role", string(r.legs.Role), grpcserver.Roles),
		oneOf("kv-connector", string(r.legs.Connector), grpcserver.Connectors))
}
