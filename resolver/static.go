package resolver

import "google.golang.org/grpc/resolver"

type staticBuilder struct{}

var _ resolver.AuthorityOverrider = staticBuilder{}

// NewBuilder returns the builder of warmpath:/// targets. It is registered
// already; grpc.WithResolvers wants it where the registry is not to be used.
func NewBuilder() resolver.Builder { return staticBuilder{} }

func (staticBuilder) Scheme() string { return Scheme }

// OverrideAuthority proposes the first replica's authority for the channel.
func (staticBuilder) OverrideAuthority(target resolver.Target) string {
	replicas, err := parseList(target.URL)
	if err != nil {
		return noAuthority // Build tells why
	}
	return defaultAuthority(replicas)
}

func (staticBuilder) Build(target resolver.Target, cc resolver.ClientConn, opts resolver.BuildOptions) (resolver.Resolver, error) {
	replicas, err := parseList(target.URL)
	if err != nil {
		return nil, err
	}
	own := opts.Authority == "" || opts.Authority == defaultAuthority(replicas)
	// An error would ask for another resolution, which has the same result.
	_ = cc.UpdateState(newState(replicas, own))
	return static{}, nil
}

type static struct{}

func (static) ResolveNow(resolver.ResolveNowOptions) {}
func (static) Close()                                {}
