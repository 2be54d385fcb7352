// Package target is what the resolvers of warmpath's dial targets share.
package target

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/fleet"
)

// Schemes of targets whose resolvers come by import: a fleet file; a Service and an InferencePool of Kubernetes.
const (
	FileScheme    = "warmpath-file"
	ServiceScheme = "warmpath-kubernetes"
	PoolScheme    = "warmpath-inferencepool"
)

// noAuthority stands in for the authority of a channel whose target has none to offer. The name is reserved (RFC 2606),
// so no program asks for it on purpose.
const noAuthority = "warmpath.invalid"

// A Builder builds the resolvers of a scheme. Each replica of a channel keeps its own authority, unless the user chose
// one for all.
type Builder struct {
	Name string // the scheme
	// Start begins to send a target's replicas to its channel. Nothing is sent after stop has returned.
	Start func(*Channel) (stop func(), err error)
	Log   *slog.Logger // nil = slog.Default() at the time
}

var _ resolver.AuthorityOverrider = (*Builder)(nil)

// Scheme implements [resolver.Builder].
func (b *Builder) Scheme() string { return b.Name }

// OverrideAuthority implements [resolver.AuthorityOverrider]: the target proposes none.
func (*Builder) OverrideAuthority(resolver.Target) string { return noAuthority }

// Build implements [resolver.Builder].
func (b *Builder) Build(t resolver.Target, cc resolver.ClientConn, o resolver.BuildOptions) (resolver.Resolver, error) {
	stop, err := b.Start(&Channel{cc, t.URL, o, cmp.Or(b.Log, slog.Default())})
	if err != nil {
		return nil, err
	}
	return started{stop}, nil
}

// started is a resolver that sends what changes unasked, until stop returns.
type started struct{ stop func() }

func (started) ResolveNow(resolver.ResolveNowOptions) {}
func (s started) Close()                              { s.stop() }

// A Channel is what a resolver sends its results to.
type Channel struct {
	resolver.ClientConn
	Target  url.URL
	Options resolver.BuildOptions
	Log     *slog.Logger
}

// Send sends the fleet.
func (c *Channel) Send(replicas []policy.Attributes) {
	_ = c.UpdateState(c.State(replicas)) // an error would ask for another resolution, which has the same result
}

// An Import is what a package of resolvers that come by import offers.
type Import struct {
	// NewBuilder returns a builder that logs to l.
	NewBuilder func(l *slog.Logger) resolver.Builder
	// Check reports what is wrong with a target, or with the file that it names.
	Check func(u url.URL) error
}

// Imported has the packages that are linked, by scheme. Their init functions fill it.
var Imported = make(map[string]Import)

// Register adds a scheme to gRPC's resolvers, and to Imported.
func Register(scheme string, check func(url.URL) error, start func(*Channel) (stop func(), err error)) {
	newBuilder := func(l *slog.Logger) resolver.Builder { return &Builder{scheme, start, l} }
	resolver.Register(newBuilder(nil))
	Imported[scheme] = Import{newBuilder, check}
}

// Packages names what to import for each scheme that is not there by itself.
var Packages = map[string]string{
	FileScheme:    "github.com/warmpath/warmpath/resolver/file",
	ServiceScheme: "github.com/warmpath/warmpath/resolver/kubernetes",
	PoolScheme:    "github.com/warmpath/warmpath/resolver/kubernetes",
}

// OpaqueOrPath returns what stands behind the scheme and the host of a target that has no query.
func OpaqueOrPath(u url.URL) (string, error) {
	if u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return "", fmt.Errorf("%q: neither ? nor # has a meaning here; write %%3F and %%23 where they belong to a name",
			u.String())
	}
	if u.Path != "" {
		return u.Path, nil
	}
	text, err := url.PathUnescape(u.Opaque)
	if err != nil {
		return "", fmt.Errorf("%q: %w", u.String(), err)
	}
	return text, nil
}

// complete marks the states of resolvers whose source lists all replicas.
type complete struct{}

// Complete reports whether a state comes from State: if it is empty, there is no replica. Of other resolvers an empty
// state may be a failure: gRPC's DNS resolver has one for a name that does not exist.
func Complete(s resolver.State) bool { return s.Attributes.Value(complete{}) != nil }

// State is the resolver state of a fleet.
func (c *Channel) State(replicas []policy.Attributes) resolver.State {
	state := resolver.State{
		Endpoints: make([]resolver.Endpoint, 0, len(replicas)),
		// For policies built on balancer/base, which read nothing else.
		Addresses:  make([]resolver.Address, 0, len(replicas)),
		Attributes: attributes.New(complete{}, true),
	}
	for _, r := range replicas {
		ep := fleet.Endpoint(r)
		if chosen := c.Options.Authority; chosen != "" && chosen != noAuthority {
			ep.Addresses[0].ServerName = "" // the one that the user chose holds for all replicas
		}
		state.Endpoints = append(state.Endpoints, ep)
		state.Addresses = append(state.Addresses, ep.Addresses...)
	}
	return state
}

// Reconnect has a lost connection made anew after base, and after longer each time, up to longest.
func Reconnect(base, longest time.Duration) grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: base, Multiplier: 1.6, Jitter: 0.2, MaxDelay: longest},
		MinConnectTimeout: 5 * time.Second,
	})
}
