// Package file resolves dial targets that name a fleet file:
//
//	warmpath-file:///etc/warmpath/fleet.yaml
//	warmpath-file:fleet.yaml                      relative to the working directory
//
// Importing it registers the scheme. The fleet is sent in each Build and after every change of the file. A file that
// breaks leaves the last good fleet in force, is logged once per change. Authorities are those of package
// resolver. Close returns when the goroutine that follows the file has ended.
package file

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/url"

	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/fleetfile"
	"github.com/warmpath/warmpath/internal/target"
)

func init() {
	resolver.Register(&builder{})
	target.Imported[target.FileScheme] = target.Import{
		NewBuilder: func(l *slog.Logger) resolver.Builder { return &builder{logger: l} },
		Check: func(u url.URL) error {
			_, err := check(u)
			return err
		},
	}
}

// A builder builds the resolvers of warmpath-file targets.
type builder struct {
	logger *slog.Logger // nil: slog.Default() at the time
}

var _ resolver.AuthorityOverrider = (*builder)(nil)

// Scheme returns warmpath-file.
func (b *builder) Scheme() string { return target.FileScheme }

// OverrideAuthority proposes none: each replica has its own.
func (*builder) OverrideAuthority(resolver.Target) string { return target.NoAuthority }

// Build reads the file and follows it. A file that is missing or broken now is
// an error.
func (b *builder) Build(
	t resolver.Target, cc resolver.ClientConn, opts resolver.BuildOptions,
) (resolver.Resolver, error) {
	path, err := check(t.URL)
	if err != nil {
		return nil, err
	}
	r := &follower{b: b, cc: cc, path: path, own: target.Own(opts)}
	r.watcher = fleetfile.Watch(path, r.update)
	return r, nil
}

// check returns the path of a target, or what is wrong with it or with its file.
func check(u url.URL) (string, error) {
	path, err := parsePath(u)
	if err != nil {
		return "", err
	}
	if _, err := fleetfile.Load(path); err != nil {
		return "", fmt.Errorf("%s: %w", target.FileScheme, err)
	}
	return path, nil
}

// parsePath reads the target of a fleet file.
func parsePath(u url.URL) (string, error) {
	if u.Host != "" || u.User != nil {
		return "", fmt.Errorf("%q: a file has no host; want %s:///path with three slashes, or %s:path for a relative path",
			u.String(), target.FileScheme, target.FileScheme)
	}
	path, err := target.OpaqueOrPath(u)
	if err != nil {
		return "", err
	}
	if path == "" || path == "/" {
		return "", fmt.Errorf("%q names no file; want %s:///path", u.String(), target.FileScheme)
	}
	return path, nil
}

func (b *builder) log() *slog.Logger { return cmp.Or(b.logger, slog.Default()) }

type follower struct {
	b       *builder
	cc      resolver.ClientConn
	path    string
	own     bool // each replica keeps its authority
	watcher *fleetfile.Watcher

	// Of update alone, which is never called twice at a time.
	err      error // the file is broken
	replicas int   // in the last good fleet
}

// update receives the fleet, the first time from within Build.
func (r *follower) update(replicas []policy.Attributes, err error) {
	was := r.err
	r.err = err
	if err != nil {
		r.b.log().Warn("warmpath: the fleet file is broken, the last good fleet stays",
			"path", r.path, "replicas", r.replicas, "error", err)
		return
	}
	if was != nil {
		r.b.log().Info("warmpath: the fleet file is good again", "path", r.path, "replicas", len(replicas))
	}
	r.replicas = len(replicas)
	// An error would ask for another resolution, which has the same result.
	_ = r.cc.UpdateState(target.State(replicas, r.own))
}

func (r *follower) ResolveNow(resolver.ResolveNowOptions) {}

// Close returns when no update is under way any more.
func (r *follower) Close() { _ = r.watcher.Close() }
