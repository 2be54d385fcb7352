package client

import (
	"net/url"
	"slices"

	"google.golang.org/grpc/resolver"
	_ "google.golang.org/grpc/resolver/dns" // the default scheme

	"github.com/warmpath/warmpath/internal/call"
	"github.com/warmpath/warmpath/internal/target"
	warmpath "github.com/warmpath/warmpath/resolver"
)

// handleResolvers wraps the resolver of a target so that the balancer finds the
// channel's handle in the resolver's state, before any pick. Those in own are taken instead of
// the registered builders of their schemes.
func handleResolvers(h *call.Handle, target string, own []resolver.Builder) []resolver.Builder {
	var wrapped []resolver.Builder
	seen := make(map[string]bool)
	// A target without a scheme gets grpc.NewClient's own, dns, or the default that the program has set.
	first, _ := splitTarget(target)
	for _, scheme := range []string{first, "dns", resolver.GetDefaultScheme()} {
		b := resolver.Get(scheme)
		if i := slices.IndexFunc(own, func(o resolver.Builder) bool { return o.Scheme() == scheme }); i >= 0 {
			b = own[i]
		}
		if b == nil || seen[scheme] {
			continue
		}
		seen[scheme] = true
		if o, ok := b.(resolver.AuthorityOverrider); ok {
			wrapped = append(wrapped, overridingBuilder{handleBuilder{b, h}, o})
			continue
		}
		wrapped = append(wrapped, handleBuilder{b, h})
	}
	return wrapped
}

// splitTarget returns the scheme and the host of a target, empty where it has none.
func splitTarget(target string) (scheme, host string) {
	if u, err := url.Parse(target); err == nil {
		return u.Scheme, u.Host
	}
	return "", ""
}

// namesFleet reports whether targets of a scheme have the attributes of replicas.
func namesFleet(scheme string) bool { return scheme == warmpath.Scheme || scheme == target.FileScheme }

type handleBuilder struct {
	resolver.Builder
	handle *call.Handle
}

// overridingBuilder keeps the authority that the wrapped builder wants.
type overridingBuilder struct {
	handleBuilder
	resolver.AuthorityOverrider
}

func (b handleBuilder) Build(
	t resolver.Target, cc resolver.ClientConn, o resolver.BuildOptions,
) (resolver.Resolver, error) {
	return b.Builder.Build(t, handleConn{cc, b.handle}, o)
}

type handleConn struct {
	resolver.ClientConn
	handle *call.Handle
}

func (c handleConn) UpdateState(s resolver.State) error {
	return c.ClientConn.UpdateState(call.SetHandle(s, c.handle))
}
