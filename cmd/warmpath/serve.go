package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath/cmd/warmpath/internal/extproc"
	"github.com/warmpath/warmpath/cmd/warmpath/internal/keda"
	"github.com/warmpath/warmpath/internal/endpoint"
	"github.com/warmpath/warmpath/internal/fleetfile"
	"github.com/warmpath/warmpath/internal/httpendpoint"
	"github.com/warmpath/warmpath/server"
)

func newServe() *cobra.Command {
	var (
		from    source
		check   bool
		json    bool
		verbose bool
		pprof   bool
		grace   time.Duration
		picker  picker
	)
	c := &cobra.Command{
		Use:   "serve --config FILE",
		Short: "Serve the look-aside server: one view of the replicas for many clients",
		Long: "serve reads deployments from a YAML file, follows its changes, and serves clients that ask for a replica\n" +
			"or watch the replicas. At the end it waits for the calls under way.",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := first(required(c, "config"), atLeast("grace", grace.Seconds(), 0)); err != nil {
				return err
			}
			loaded, err := from.load()
			if err != nil {
				return usagef("--config: %w", err)
			}
			if err := loaded.CheckFiles(); err != nil {
				return usagef("--config: %s: %w", from.path, err)
			}
			if pprof && !isLoopback(loaded.Metrics) {
				return usagef("--pprof: metrics: %q is not an address on the loopback", loaded.Metrics)
			}
			if err := picker.check(loaded); err != nil {
				return err
			}
			if check {
				fmt.Fprintf(c.OutOrStdout(), "%s is good: %s\n", from.path, deployments(loaded))
				return nil
			}
			out := newServeOutput(c, json, verbose)
			defer out.restore()
			return serve(c, from, loaded, out, pprof, grace, &picker)
		},
	}
	f := c.Flags()
	f.StringVar(&from.path, "config", "", "the server's configuration, a YAML `file`")
	f.StringVar(&from.listen, "listen", "", "the `address` to listen on in place of the configuration's, host:port")
	f.StringVar(&from.http, "http", "", "the `address` of the HTTP endpoint and the page in place of the configuration's")
	f.BoolVar(&check, "check", false, "only check the configuration")
	f.BoolVar(&json, logJSON, false, "write every line in JSON")
	f.BoolVar(&verbose, "verbose", false, "log at level debug: each call, with its status and duration, but not its contents")
	f.BoolVar(&pprof, "pprof", false, "serve /debug/pprof/ on the address of metrics, which must be on the loopback")
	picker.flags(f)
	f.DurationVar(&grace, "grace", 10*time.Second, "how long calls under way may take at the end")
	return c
}

// logJSON is the flag that makes every line JSON.
const logJSON = "log-json"

// serveOutput is where serve writes: what it logs, and what it announces on standard output.
type serveOutput struct {
	log     *slog.Logger
	say     func(line string)
	restore func()
	ended   chan error // what the servers return
}

// serve listens at an address, the value of a field or flag, begins to serve, and announces what it does there.
func (o serveOutput) serve(ctx context.Context, field, address string, serve func(net.Listener) error, does string) error {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	go func() { o.ended <- serve(lis) }()
	o.say(fmt.Sprintf("warmpath %s on %s", does, lis.Addr()))
	return nil
}

// newServeOutput makes the logger slog's default, which libraries use, until restore is called.
func newServeOutput(c *cobra.Command, json, verbose bool) serveOutput {
	before, options := slog.Default(), new(slog.HandlerOptions)
	if verbose {
		options.Level = slog.LevelDebug
	}
	o := serveOutput{
		log:     slog.New(slog.NewTextHandler(c.ErrOrStderr(), options)),
		say:     func(line string) { fmt.Fprintln(c.OutOrStdout(), line) },
		restore: func() { slog.SetDefault(before) },
		ended:   make(chan error, 3), // none waits to be read
	}
	if json {
		o.log = slog.New(slog.NewJSONHandler(c.ErrOrStderr(), options))
		o.say = func(line string) { slog.New(slog.NewJSONHandler(c.OutOrStdout(), nil)).Info(line) }
	}
	slog.SetDefault(o.log)
	return o
}

func deployments(c *server.Config) string { return counted(len(c.Deployments), "deployment") }

// A source is where the configuration comes from. listen and http, where they are not empty, replace the file's own
// listen and http.listen.
type source struct{ path, listen, http string }

func (s source) load() (*server.Config, error) {
	data, err := fleetfile.Read(s.path)
	if err != nil {
		return nil, err
	}
	config, err := s.parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.path, err)
	}
	return config, nil
}

func (s source) parse(data []byte) (*server.Config, error) {
	config, err := server.ParseConfig(data)
	if err != nil || s.listen == "" && s.http == "" {
		return config, err
	}
	config.Listen, config.HTTP.Listen = cmp.Or(s.listen, config.Listen), cmp.Or(s.http, config.HTTP.Listen)
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("with --listen or --http: %w", err)
	}
	return config, nil
}

// serve serves until the command is interrupted.
func serve(c *cobra.Command, from source, first *server.Config, out serveOutput, pprof bool,
	grace time.Duration, picker *picker,
) error {
	log := out.log
	exports, err := startExport(c.Context(), first.Metrics, pprof, out)
	if err != nil {
		return err
	}
	defer exports.end()
	s, err := server.New(first, server.Options{Logger: log, Meter: exports.meter, Tracer: exports.tracer})
	if err != nil {
		return err
	}
	defer s.Close()
	keda.Register(c.Context(), endpoint.Of(s))
	// Its first look is at what was just loaded, and changes nothing.
	unwatch := fleetfile.Watch(from.path, func(data []byte, err error) { reload(s, from, data, err, log) })
	defer unwatch()
	if first.HTTP.Listen != "" {
		does := "shows its page and answers POST " + httpendpoint.RoutePath
		if err := out.serve(c.Context(), "http.listen", first.HTTP.Listen, s.ServeRoutes, does); err != nil {
			return err
		}
	}
	picks, err := picker.serve(c.Context(), s, out)
	if err != nil {
		return err
	}
	defer picks.Close()
	if err := out.serve(c.Context(), "listen", first.Listen, s.Serve, "serves "+deployments(first)); err != nil {
		return err
	}
	select {
	case err := <-out.ended:
		return err
	case <-c.Context().Done():
	}
	log.Info("warmpath: shutting down", "grace", grace)
	picked := make(chan struct{})
	go func() {
		defer close(picked)
		picker.shutdown(picks)
	}()
	within(grace, func(ctx context.Context) {
		select {
		case <-picked:
		case <-ctx.Done(): // responses still pass through the picker
		}
	})
	within(grace, func(ctx context.Context) {
		if err := s.Shutdown(ctx); err != nil {
			log.Warn("warmpath: calls under way were cut off", "error", err)
		}
	})
	<-picked
	return <-out.ended
}

// within calls f with a context that ends after a time.
func within(d time.Duration, f func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	f(ctx)
}

// reload takes a changed file. One that is broken leaves what was.
func reload(s *server.Server, from source, data []byte, err error, log *slog.Logger) {
	var next *server.Config
	if err == nil {
		next, err = from.parse(data)
	}
	if err == nil {
		err = s.Update(next)
	}
	if err != nil {
		log.Error("warmpath: the configuration was not taken, the last good one stays", "path", from.path, "error", err)
		return
	}
	log.Info("warmpath: the configuration is in force", "path", from.path, "deployments", len(next.Deployments))
}

// picker is the ext_proc endpoint of serve.
type picker struct {
	listen  string
	grace   time.Duration
	options extproc.Options
}

func (p *picker) flags(f *pflag.FlagSet) {
	f.StringVar(&p.listen, "ext-proc", "", "the `address` of the endpoint picker for gateways, host:port; default none")
	f.StringVar(&p.options.Deployment, "ext-proc-deployment", "", "`name` of its deployment; default: by the model")
	f.Uint32Var(&p.options.Fallbacks, "ext-proc-fallbacks", 0,
		"the `number` of fallbacks behind the picked address, at most 16; many gateways take one address only")
	f.DurationVar(&p.grace, "ext-proc-grace", 15*time.Minute,
		"how long responses under way may pass through the endpoint picker at the end, if the gateway needs it for them")
	f.BoolVar(&p.options.ForTests, "ext-proc-test-header", false,
		"obey the header test-epp-endpoint-selection of conformance tests, with which any client chooses its replica")
}

// check checks the flags against the configuration.
func (p *picker) check(c *server.Config) error {
	name := p.options.Deployment
	if _, found := c.Deployments[name]; name != "" && !found {
		return usagef("--ext-proc-deployment: there is no deployment %q", name)
	}
	if err := atLeast("ext-proc-grace", p.grace.Seconds(), 0); err != nil {
		return err
	}
	if p.options.Fallbacks > 16 {
		return usagef("--ext-proc-fallbacks: %d is more than 16", p.options.Fallbacks)
	}
	if p.listen == "" {
		if name != "" || p.options.ForTests || p.options.Fallbacks > 0 {
			return usagef("--ext-proc: the address is missing")
		}
		return nil
	}
	if _, _, err := net.SplitHostPort(p.listen); err != nil {
		return usagef("--ext-proc: %q is not host:port", p.listen)
	}
	if c.TLS == nil && !c.AllowPlaintext && !isLoopback(p.listen) {
		return usagef("--ext-proc: %s is not on the loopback, and there is no TLS: "+
			"set tls, or allow_plaintext if the network is trusted", p.listen)
	}
	return nil
}

// serve begins to serve, if there is an address.
func (p *picker) serve(ctx context.Context, s *server.Server, out serveOutput) (*extproc.Server, error) {
	if p.listen == "" {
		return nil, nil
	}
	e := extproc.New(endpoint.Of(s), p.options)
	return e, out.serve(ctx, "--ext-proc", p.listen, e.Serve, "picks endpoints for gateways")
}

// shutdown ends the endpoint.
func (p *picker) shutdown(e *extproc.Server) {
	within(p.grace, e.Shutdown)
}
