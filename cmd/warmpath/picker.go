package main

import (
	"context"
	"fmt"
	"net"

	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath/cmd/warmpath/internal/extproc"
	"github.com/warmpath/warmpath/internal/endpoint"
	"github.com/warmpath/warmpath/server"
)

// picker is the ext_proc endpoint of serve.
type picker struct {
	listen  string
	options extproc.Options
}

func (p *picker) flags(f *pflag.FlagSet) {
	f.StringVar(&p.listen, "ext-proc", "", "the `address` of the endpoint picker for gateways, host:port; default none")
	f.StringVar(&p.options.Deployment, "ext-proc-deployment", "",
		"the `name` of its deployment; default by the model, or the only one")
	f.Uint32Var(&p.options.Fallbacks, "ext-proc-fallbacks", 0,
		"the `number` of fallbacks behind the picked address, at most 16; many gateways take one address only")
	f.BoolVar(&p.options.ForTests, "ext-proc-test-header", false,
		"obey the header test-epp-endpoint-selection of conformance tests, with which any client chooses its replica")
}

// check checks the flags against the configuration.
func (p *picker) check(c *server.Config) error {
	name := p.options.Deployment
	if _, found := c.Deployments[name]; name != "" && !found {
		return usagef("--ext-proc-deployment: there is no deployment %q", name)
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
func (p *picker) serve(ctx context.Context, s *server.Server, failed chan<- error, out serveOutput) (
	*extproc.Server, error,
) {
	if p.listen == "" {
		return nil, nil
	}
	e := extproc.New(endpoint.Of(s), p.options)
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", p.listen)
	if err != nil {
		return nil, fmt.Errorf("--ext-proc: %w", err)
	}
	go func() {
		if err := e.Serve(lis); err != nil {
			failed <- err
		}
	}()
	out.say(fmt.Sprintf("warmpath picks endpoints for gateways on %s", lis.Addr()))
	return e, nil
}
