package resolver

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/fleet"
)

// maxProposals bounds the authorities that a FileBuilder remembers.
const maxProposals = 1024

// A FileBuilder builds the resolvers of warmpath-file targets.
type FileBuilder struct {
	logger *slog.Logger // nil: slog.Default() at the time
	broken atomic.Int64

	// mu guards proposals; nothing is called under it.
	mu sync.Mutex
	// proposals are the authorities proposed, by path. The channel keeps the
	// first for its life, while the file changes and the resolver is rebuilt
	// after idleness: without this a stale proposal would look like the user's
	// own choice.
	proposals map[string]string
}

var _ resolver.AuthorityOverrider = (*FileBuilder)(nil)

// An Option changes a [FileBuilder].
type Option func(*FileBuilder)

// WithLogger sets where broken and repaired fleet files are logged; the default
// is slog.Default().
func WithLogger(l *slog.Logger) Option { return func(b *FileBuilder) { b.logger = l } }

// NewFileBuilder returns a builder of warmpath-file targets. One is registered
// already; grpc.WithResolvers takes one with options.
func NewFileBuilder(opts ...Option) *FileBuilder {
	b := &FileBuilder{proposals: make(map[string]string)}
	for _, o := range opts {
		o(b)
	}
	return b
}

// Scheme returns FileScheme.
func (b *FileBuilder) Scheme() string { return FileScheme }

// Broken returns how many times a file that a resolver of this builder followed
// changed into something broken.
func (b *FileBuilder) Broken() int64 { return b.broken.Load() }

// OverrideAuthority proposes the first replica's authority for the channel, as
// the file has it at the first call for this target.
func (b *FileBuilder) OverrideAuthority(target resolver.Target) string {
	path, err := parsePath(target.URL)
	if err != nil {
		return noAuthority
	}
	if authority, ok := b.proposed(path); ok {
		return authority
	}
	replicas, err := fleet.Load(path)
	if err != nil || len(replicas) == 0 {
		return noAuthority
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if authority, ok := b.proposals[path]; ok {
		return authority
	}
	if len(b.proposals) >= maxProposals {
		return noAuthority
	}
	b.proposals[path] = replicas[0].Authority()
	return b.proposals[path]
}

func (b *FileBuilder) proposed(path string) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	authority, ok := b.proposals[path]
	return authority, ok
}

// Build reads the file and follows it. A file that is missing or broken now is
// an error.
func (b *FileBuilder) Build(
	target resolver.Target, cc resolver.ClientConn, opts resolver.BuildOptions,
) (resolver.Resolver, error) {
	path, err := parsePath(target.URL)
	if err != nil {
		return nil, err
	}
	proposed, _ := b.proposed(path)
	r := &fileResolver{b: b, cc: cc, path: path}
	switch opts.Authority {
	case "", noAuthority, proposed:
		r.own = true
	}
	r.watcher = fleet.Watch(path, r.update)
	if r.refused != nil {
		_ = r.watcher.Close()
		return nil, fmt.Errorf("%s: %w", FileScheme, r.refused)
	}
	if err := r.watcher.Degraded(); err != nil {
		b.log().Warn("warmpath: no events from the file system, changes of the fleet file are seen late",
			"path", path, "interval", fleet.PollInterval, "error", err)
	}
	return r, nil
}

func (b *FileBuilder) log() *slog.Logger {
	if b.logger != nil {
		return b.logger
	}
	return slog.Default()
}

type fileResolver struct {
	b       *FileBuilder
	cc      resolver.ClientConn
	path    string
	own     bool // each replica keeps its authority
	watcher *fleet.Watcher

	// Written in the first update, within Build, and not again.
	started bool
	refused error // the file was broken then: the resolver never lived

	// Of update alone, which is never called twice at a time.
	err      error // the file is broken
	replicas int   // in the last good fleet
}

// update receives the file's content, the first time from within Build.
func (r *fileResolver) update(replicas []fleet.Replica, err error) {
	if !r.started {
		r.started, r.refused = true, err
	}
	if r.refused != nil {
		return
	}
	was := r.err
	r.err = err
	if err != nil {
		r.b.broken.Add(1)
		r.b.log().Warn("warmpath: the fleet file is broken, the last good fleet stays",
			"path", r.path, "replicas", r.replicas, "error", err)
		return
	}
	if was != nil {
		r.b.log().Info("warmpath: the fleet file is good again", "path", r.path, "replicas", len(replicas))
	}
	r.replicas = len(replicas)
	// An error would ask for another resolution, which has the same result.
	_ = r.cc.UpdateState(newState(replicas, r.own))
}

func (r *fileResolver) ResolveNow(resolver.ResolveNowOptions) {}

// Close returns when no update is under way any more.
func (r *fileResolver) Close() { _ = r.watcher.Close() }
