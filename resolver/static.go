package resolver

import (
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/internal/lookaside"
	"github.com/warmpath/warmpath/internal/target"
)

// builder builds the resolvers of fixed lists and of look-aside servers.
type builder struct {
	dial   []grpc.DialOption // of servers
	logger *slog.Logger      // nil: slog.Default() at the time
	timing lookaside.Timing
	memory memory
}

var _ resolver.AuthorityOverrider = (*builder)(nil)

// NewBuilder returns the builder of targets warmpath:///replicas and
// warmpath://servers/deployment. It is registered already; grpc.WithResolvers
// wants it where the registry is not to be used, or for options.
func NewBuilder(opts ...ServerOption) resolver.Builder {
	b := &builder{}
	for _, o := range opts {
		o(b)
	}
	return b
}

func (*builder) Scheme() string { return Scheme }

// OverrideAuthority proposes the first replica's authority for the channel.
func (*builder) OverrideAuthority(t resolver.Target) string {
	if asksServer(t.URL) {
		return target.NoAuthority
	}
	replicas, err := parseList(t.URL)
	if err != nil {
		return target.NoAuthority // Build returns the reason
	}
	return defaultAuthority(replicas)
}

func (b *builder) Build(
	t resolver.Target, cc resolver.ClientConn, opts resolver.BuildOptions,
) (resolver.Resolver, error) {
	if asksServer(t.URL) {
		return b.watch(t, cc, opts)
	}
	replicas, err := parseList(t.URL)
	if err != nil {
		return nil, err
	}
	own := opts.Authority == "" || opts.Authority == defaultAuthority(replicas)
	// An error would ask for another resolution, which has the same result.
	_ = cc.UpdateState(target.State(replicas, own))
	return static{}, nil
}

type static struct{}

func (static) ResolveNow(resolver.ResolveNowOptions) {}
func (static) Close()                                {}
