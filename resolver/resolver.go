// Package resolver names fleets of replicas in a gRPC dial target.
//
//	warmpath:///10.0.0.1:50051,10.0.0.2:50051     a fixed list
//	warmpath:///a=10.0.0.1:50051,b=[::1]:50051    with ids
//	warmpath://la1:4770,la2:4770/chat             the deployment chat of look-aside servers
//
// Importing the package registers the scheme; [NewBuilder] makes builders for grpc.WithResolvers. Package resolver/file
// adds targets that name a fleet file, the module resolver/kubernetes those that name a Service or an InferencePool.
//
// The rule. Every replica is one endpoint with the attributes of package fleet,
// in the order in which it was written. A fixed list is sent once in each Build.
// Asking to resolve again does nothing.
//
// A look-aside server is watched for the life of the resolver, which is that of the
// channel less the times in which it is idle. Its service config comes before the
// application's default, unless the channel was dialled with
// grpc.WithDisableServiceConfig; a broken one is ignored. What a server sent last is
// kept for the next resolver of the same target and options: a channel that leaves
// idleness needs no server. The last good fleet stays in force while a server is gone
// or hangs, was restarted without its replicas, or lists unreachable ones.
//
// Names on the wire. TLS name and :authority of a call are its replica's own
// server name or address, never the target: servers written in Rust reset
// streams with a comma in :authority. They come from resolver.Address.ServerName,
// which grpc-go uses for both, so they hold under any balancer. Where the user
// chose an authority (grpc.WithAuthority, a server name in the credentials) it
// holds for all replicas.
//
// Guarantees. A target with a mistake never connects: grpc fails
// every call with the error of Build, which names the entry or the field, until
// a Build succeeds. [Check] reports the same before dialling, since grpc.NewClient
// builds nothing.
//
// With an HTTP proxy in the environment, grpc-go puts the proxy's address in
// the place of every replica's and drops the attributes; dial with
// grpc.WithNoProxy.
//
// Source: gRFC A61 (endpoints), gRFC A81 (authority), grpc-go's resolver
// documentation and its http2 client.
package resolver

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/fleet"
	"github.com/warmpath/warmpath/internal/lookaside"
	"github.com/warmpath/warmpath/internal/strict"
	"github.com/warmpath/warmpath/internal/target"
)

// Scheme is the scheme of the dial targets.
const Scheme = "warmpath"

func init() { resolver.Register(NewBuilder()) }

// builder builds the resolvers of fixed lists and of look-aside servers.
type builder struct {
	dial   []grpc.DialOption // of servers
	logger *slog.Logger      // nil = slog.Default() at the time
	timing lookaside.Timing
	memory memory
}

// NewBuilder returns the builder of targets warmpath:///replicas and
// warmpath://servers/deployment. It is registered already; grpc.WithResolvers
// wants it where the registry is not to be used, or for options.
func NewBuilder(opts ...ServerOption) resolver.Builder {
	b := &builder{memory: memory{states: make(map[string]*lookaside.State)}}
	for _, o := range opts {
		o(b)
	}
	return &target.Builder{Name: Scheme, Start: b.start, Log: b.logger}
}

func (b *builder) start(c *target.Channel) (stop func(), err error) {
	if asksServer(c.Target) {
		return b.watch(c)
	}
	replicas, err := parseList(c.Target)
	if err == nil {
		c.Send(replicas)
	}
	return func() {}, err
}

// Check reports what is wrong with a dial target of this package or of those that come by import, including the fleet
// file that it names; nil for targets of other schemes.
func Check(text string) error {
	scheme, _, _ := strings.Cut(text, ":")
	scheme = strings.ToLower(scheme)
	path, foreign := target.Packages[scheme]
	if scheme != Scheme && !foreign {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil {
		return fmt.Errorf("%q: %w; the target begins with %s:///", text, errors.Unwrap(err), scheme)
	}
	switch {
	case scheme == Scheme && asksServer(*u):
		_, err = parseServers(*u)
	case scheme == Scheme:
		_, err = parseList(*u)
	case target.Imported[scheme].Check == nil:
		err = fmt.Errorf("%q: %s is not linked: import _ %q", u.String(), scheme, path)
	default:
		err = target.Imported[scheme].Check(*u)
	}
	return err
}

// parseList reads the target of a fixed list.
func parseList(u url.URL) ([]policy.Attributes, error) {
	list, err := target.OpaqueOrPath(u)
	if err != nil {
		return nil, err
	}
	list = strings.TrimPrefix(list, "/")
	if list == "" {
		return nil, fmt.Errorf("%q names no replica; want %s:///host:port,host:port", u.String(), Scheme)
	}
	replicas, err := fleet.ParseList(list)
	return replicas, strict.In(Scheme+": ", err)
}
