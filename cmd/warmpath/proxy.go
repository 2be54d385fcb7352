package main

import (
	"context"
	"crypto/tls"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"sigs.k8s.io/yaml"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/cmd/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/balancer"
	"github.com/warmpath/warmpath/internal/fleetfile"
)

// proxyFlags are those of the command proxy.
type proxyFlags struct {
	listen, target, config, metrics string

	cert, key, clientCA string // of the listener
	dial                dialFlags
	json, verbose       bool
	grace               time.Duration
}

func newProxy() *cobra.Command {
	var p proxyFlags
	c := &cobra.Command{
		Use:   "proxy --listen ADDRESS --target TARGET",
		Short: "Route the gRPC calls of clients in any language: a sidecar",
		Long: "proxy takes the calls of a client in any language and passes them on, each to the replica that warmpath\n" +
			"picks for it. It needs no protos. At the end it waits for the calls under way.",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := first(required(c, "listen"), required(c, "target"), atLeast("grace", p.grace.Seconds(), 0)); err != nil {
				return err
			}
			out := newServeOutput(c, p.json, p.verbose)
			defer out.restore()
			return p.run(c, out)
		},
	}
	p.add(c.Flags())
	return c
}

func (p *proxyFlags) add(f *pflag.FlagSet) {
	f.StringVar(&p.listen, "listen", "", "the `address` to listen on, host:port")
	f.StringVar(&p.target, "target", "",
		"the `replicas`: warmpath:///host:port,host:port, warmpath://server/deployment or any gRPC target")
	f.StringVar(&p.config, "config", "", "the channel's configuration, a YAML or JSON `file`")
	f.StringVar(&p.cert, "listen-cert", "", "PEM `file` of the listener's certificate; default: no TLS")
	f.StringVar(&p.key, "listen-key", "", "PEM `file` of its private key")
	f.StringVar(&p.clientCA, "listen-client-ca", "", "PEM `file` of the authorities whose clients alone are served")
	f.StringVar(&p.metrics, "metrics", "", "serve Prometheus' page at this `address`, host:port")
	f.BoolVar(&p.json, logJSON, false, "write every line in JSON")
	f.BoolVar(&p.verbose, "verbose", false, "log at level debug")
	f.DurationVar(&p.grace, "grace", 10*time.Second, "how long calls under way may take at the end")
	p.dial.add(f)
}

// run passes calls on until the command is interrupted.
func (p *proxyFlags) run(c *cobra.Command, out serveOutput) error {
	serve, err := p.listenerOptions()
	if err != nil {
		return err
	}
	dial, err := p.dialOptions(out)
	if err != nil {
		return err
	}
	exports, err := startExport(c.Context(), p.metrics, false, out)
	if err != nil {
		return err
	}
	defer exports.end()
	if exported("TRACES") {
		tracer, parent := otelgrpc.WithTracerProvider(exports.tracer), otelgrpc.WithPropagators(propagation.TraceContext{})
		serve = append(serve, grpc.StatsHandler(otelgrpc.NewServerHandler(tracer, parent)))
		dial = append(dial, grpc.WithStatsHandler(otelgrpc.NewClientHandler(tracer, parent)))
	}
	passes, err := proxy.New(p.target, append(dial, client.WithMeterProvider(exports.meter)), serve...)
	if err != nil {
		return usagef("--target or --config: %w", err)
	}
	if err := out.serve(c.Context(), "--listen", p.listen, passes.Serve, "passes calls to "+p.target); err != nil {
		_ = passes.Close()
		return err
	}
	select {
	case err := <-out.ended:
		_ = passes.Close()
		return err
	case <-c.Context().Done():
	}
	out.log.Info("warmpath: shutting down", "grace", p.grace)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), p.grace)
	defer cancel()
	return first(passes.Shutdown(ctx), <-out.ended)
}

// dialOptions are how replicas and look-aside servers are reached, and the channel's configuration.
func (p *proxyFlags) dialOptions(out serveOutput) ([]grpc.DialOption, error) {
	transport, err := p.dial.transport()
	if err != nil {
		return nil, err
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(transport), client.WithLogger(out.log)}
	if p.dial.tokenFile != "" {
		if p.cert == "" && !isLoopback(p.listen) { // its clients would act with the proxy's token
			return nil, usagef("--token-file: %s is not on the loopback, and there is no --listen-cert", p.listen)
		}
		token, err := p.dial.token(p.target)
		if err != nil {
			return nil, usagef("--token-file: %w", err)
		}
		options = append(options, client.WithServerDialOptions(grpc.WithPerRPCCredentials(token)))
	}
	if p.config == "" {
		return options, nil
	}
	data, err := fleetfile.Read(p.config)
	if err != nil {
		return nil, usagef("--config: %w", err)
	}
	config, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, usagef("--config: %s: %w", p.config, err)
	}
	if err := balancer.Check(string(config)); err != nil {
		return nil, usagef("--config: %s: %w", p.config, err)
	}
	return append(options, client.WithConfig(string(config))), nil
}

// listenerOptions are the listener's TLS.
func (p *proxyFlags) listenerOptions() ([]grpc.ServerOption, error) {
	if p.cert == "" && p.key == "" {
		if p.clientCA != "" {
			return nil, usagef("--listen-client-ca: it needs --listen-cert and --listen-key")
		}
		return nil, nil
	}
	load, err := certificate("--listen-cert, --listen-key", p.cert, p.key)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return load() },
	}
	if p.clientCA != "" {
		config.ClientAuth = tls.RequireAndVerifyClientCert
		if config.ClientCAs, err = authorities("listen-client-ca", p.clientCA); err != nil {
			return nil, err
		}
	}
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(config))}, nil
}
