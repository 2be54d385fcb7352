// Package resolver names fleets of replicas in a gRPC dial target.
//
//	warmpath:///10.0.0.1:50051,10.0.0.2:50051     a fixed list
//	warmpath:///a=10.0.0.1:50051,b=[::1]:50051    with ids
//	warmpath-file:///etc/warmpath/fleet.yaml      a fleet file, followed
//	warmpath-file:fleet.yaml                      relative to the working directory
//	warmpath://la1:4770,la2:4770/chat             the deployment chat of look-aside servers
//
// Importing the package registers both schemes; [NewBuilder] and
// [NewFileBuilder] make builders for grpc.WithResolvers.
//
// The rule. Every replica is one endpoint with the attributes of package fleet,
// in the order in which it was written. A fixed list is sent once in each Build,
// a fleet file also after every change; a file that breaks leaves the last good
// fleet in force, is logged once per change and counted. Asking to resolve again
// does nothing.
//
// A look-aside server is watched for the life of the resolver, which is that of the
// channel less the times in which it is idle. Its service config comes before the
// application's default, unless the channel was dialled with
// grpc.WithDisableServiceConfig; one that is broken is passed over. What a
// server sent last is remembered for the next resolver of the same target and options: a channel
// that leaves idleness needs no server. A server that is gone, hangs, was restarted
// without its replicas, or names unreachable ones leaves the last good fleet
// in force.
//
// Names on the wire. TLS name and :authority of a call are its replica's own
// server name or address, never the target: servers written in Rust reset
// streams with a comma in :authority. They come from resolver.Address.ServerName,
// which grpc-go uses for both, so they hold under any balancer. Where the user
// chose an authority (grpc.WithAuthority, a server name in the credentials) it
// holds for all replicas. The one choice that cannot be distinguished from none is the
// very authority that the channel would have by default, the first replica's.
//
// Guarantees. A target with a mistake never connects: grpc fails
// every call with the error of Build, which names the entry or the field, until
// a Build succeeds. [Check] reports the same before dialling, since grpc.NewClient
// builds nothing. Close returns when the goroutine that follows a file has ended.
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
	"net/url"
	"strings"

	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/fleet"
)

// The schemes of the dial targets.
const (
	Scheme     = "warmpath"
	FileScheme = "warmpath-file"
)

func init() {
	resolver.Register(NewBuilder())
	resolver.Register(NewFileBuilder())
}

// noAuthority stands in for the authority of a channel whose target has none to
// offer. The name is reserved (RFC 2606), so no program asks for it on purpose.
const noAuthority = "warmpath.invalid"

// Check reports what is wrong with a dial target of this package, including the
// fleet file that it names; nil for targets of other schemes.
func Check(target string) error {
	scheme, _, _ := strings.Cut(target, ":")
	if scheme = strings.ToLower(scheme); scheme != Scheme && scheme != FileScheme {
		return nil
	}
	u, err := url.Parse(target)
	if err != nil {
		var bad *url.Error
		if errors.As(err, &bad) {
			err = bad.Err
		}
		return fmt.Errorf("%q: %w; the target begins with %s:///", target, err, scheme)
	}
	if scheme == Scheme && asksServer(*u) {
		_, err := parseServers(*u)
		return err
	}
	if scheme == Scheme {
		_, err := parseList(*u)
		return err
	}
	path, err := parsePath(*u)
	if err != nil {
		return err
	}
	if _, err := fleet.Load(path); err != nil {
		return fmt.Errorf("%s: %w", FileScheme, err)
	}
	return nil
}

// parseList reads the target of a fixed list.
func parseList(u url.URL) ([]fleet.Replica, error) {
	list, err := opaqueOrPath(u)
	if err != nil {
		return nil, err
	}
	list = strings.TrimPrefix(list, "/")
	if list == "" {
		return nil, fmt.Errorf("%q names no replica; want %s:///host:port,host:port", u.String(), Scheme)
	}
	replicas, err := fleet.ParseList(list)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Scheme, err)
	}
	return replicas, nil
}

// parsePath reads the target of a fleet file.
func parsePath(u url.URL) (string, error) {
	if u.Host != "" || u.User != nil {
		return "", fmt.Errorf("%q: a file has no host; want %s:///path with three slashes, or %s:path for a relative path",
			u.String(), FileScheme, FileScheme)
	}
	path, err := opaqueOrPath(u)
	if err != nil {
		return "", err
	}
	if path == "" || path == "/" {
		return "", fmt.Errorf("%q names no file; want %s:///path", u.String(), FileScheme)
	}
	return path, nil
}

func opaqueOrPath(u url.URL) (string, error) {
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

// defaultAuthority is the authority proposed for a channel to a fleet.
func defaultAuthority(replicas []fleet.Replica) string {
	if len(replicas) == 0 {
		return noAuthority
	}
	return replicas[0].Authority()
}

// newState is the resolver state of a fleet; own: each replica
// keeps its own authority.
func newState(replicas []fleet.Replica, own bool) resolver.State {
	state := resolver.State{
		Endpoints: make([]resolver.Endpoint, 0, len(replicas)),
		// For policies built on balancer/base, which look no further.
		Addresses: make([]resolver.Address, 0, len(replicas)),
	}
	for _, r := range replicas {
		addEndpoint(&state, fleet.Endpoint(r), own)
	}
	return state
}

func addEndpoint(to *resolver.State, ep resolver.Endpoint, own bool) {
	if !own {
		ep = fleet.UseChannelAuthority(ep)
	}
	to.Endpoints = append(to.Endpoints, ep)
	to.Addresses = append(to.Addresses, ep.Addresses...)
}
