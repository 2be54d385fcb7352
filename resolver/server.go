package resolver

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/fleet"
	"github.com/warmpath/warmpath/internal/lookaside"
	"github.com/warmpath/warmpath/internal/target"
)

// A ServerOption changes how look-aside servers are reached.
type ServerOption func(*builder)

// WithServerDialOptions sets how to reach look-aside servers: credentials, tokens, interceptors. By default they are
// reached with the transport credentials and the dialer of the channel, without its per-call credentials.
func WithServerDialOptions(opts ...grpc.DialOption) ServerOption {
	return func(b *builder) { b.dial = append(b.dial, opts...) }
}

// WithServerLogger sets where servers that are lost and found are logged; the default is slog.Default().
func WithServerLogger(l *slog.Logger) ServerOption { return func(b *builder) { b.logger = l } }

// memory is what servers sent last, by target, for resolvers to come. Safe for use by many goroutines.
type memory struct {
	mu     sync.Mutex // guards states; nothing is called under it
	states map[string]*lookaside.State
}

// maxMemory bounds the targets that are remembered.
const maxMemory = 1024

// get returns nil for a target that is not remembered.
func (m *memory) get(target string) *lookaside.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.states[target]
}

func (m *memory) put(target string, s *lookaside.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.states[target] != nil || len(m.states) < maxMemory {
		m.states[target] = s
	}
}

// asksServer reports whether a target of the scheme names look-aside servers and not replicas.
func asksServer(u url.URL) bool { return u.Host != "" || u.User != nil }

// A lookup is the deployment that a target names, and its servers.
type lookup struct {
	servers    []string
	deployment string
}

func parseServers(u url.URL) (lookup, error) {
	fail := func(what string) (lookup, error) {
		return lookup{}, fmt.Errorf("%q: %s; want %s://host:port,host:port/deployment for look-aside servers, "+
			"or three slashes, %s:///host:port,host:port, for replicas", u.String(), what, Scheme, Scheme)
	}
	if u.User != nil {
		return fail("there is an @ in it, and credentials do not belong into a target")
	}
	if u.Path == "" {
		return fail("no deployment is named, not even by a / that leaves it to the server")
	}
	path, err := target.OpaqueOrPath(u)
	if err != nil {
		return lookup{}, err
	}
	l := lookup{servers: strings.Split(u.Host, ","), deployment: strings.TrimPrefix(path, "/")}
	for i, s := range l.servers {
		r := policy.Attributes{Address: s}
		if err := fleet.Settle(&r); err != nil {
			return fail(fmt.Sprintf("server %d: %v", i+1, err))
		}
		if slices.Contains(l.servers[:i], s) {
			return fail(fmt.Sprintf("server %d: %s is there twice", i+1, s))
		}
	}
	return l, nil
}

// watch follows a deployment.
func (b *builder) watch(c *target.Channel) (stop func(), err error) {
	l, err := parseServers(c.Target)
	if err != nil {
		return nil, err
	}
	r := &watchResolver{Channel: c, memory: &b.memory, target: c.Target.String()}
	w, err := lookaside.Start(lookaside.Options{
		Servers:    l.servers,
		Deployment: l.deployment,
		Dial:       append(inherited(c.Options), b.dial...),
		Logger:     c.Log,
		Known:      b.memory.get(r.target),
		Changed:    r.changed,
		Failed: func(err error) {
			// A server that refuses answers with a status, which is not the call's: gRPC would fail calls that are to
			// wait for a connection, and others with INTERNAL.
			c.ReportError(errors.New(err.Error()))
		},
		Timing: b.timing,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.target, err)
	}
	return w.Close, nil
}

// inherited is how servers are reached by default: as the channel reaches replicas.
func inherited(opts resolver.BuildOptions) []grpc.DialOption {
	var dial []grpc.DialOption
	switch {
	case opts.DialCreds != nil:
		dial = append(dial, grpc.WithTransportCredentials(opts.DialCreds.Clone()))
	case opts.CredsBundle != nil && opts.CredsBundle.TransportCredentials() != nil:
		dial = append(dial, grpc.WithTransportCredentials(opts.CredsBundle.TransportCredentials().Clone()))
	}
	if opts.Dialer != nil {
		dial = append(dial, grpc.WithContextDialer(opts.Dialer))
	}
	return dial
}

// watchResolver passes a server's updates to a channel.
type watchResolver struct {
	*target.Channel
	memory *memory
	target string

	// Of changed alone, which is never called twice at a time.
	last string // the last service config that was received
	good string // the last one that could be read, without what is newer than this client
}

func (r *watchResolver) changed(w *lookaside.Watch, s lookaside.State) {
	r.memory.put(r.target, &s)
	state := r.State(s.Replicas)
	if config := r.config(s.ServiceConfig); config != "" {
		state.ServiceConfig = r.ParseServiceConfig(config)
	}
	// An error would ask for another resolution, which has the same result.
	_ = r.UpdateState(lookaside.SetWatch(state, w))
}

// config returns the service config to use: the last one that could be read.
func (r *watchResolver) config(received string) string {
	if received == "" || received == r.last {
		return r.good
	}
	r.last = received
	use, ignored := tolerate(received)
	if parsed := r.ParseServiceConfig(use); parsed.Err != nil {
		r.Log.Warn("warmpath: the look-aside server's service config cannot be used, the one before stays",
			"target", r.target, "error", parsed.Err)
		return r.good
	}
	if ignored != nil {
		r.Log.Warn("warmpath: the look-aside server's service config has what this client does not know; "+
			"it goes by the rest", "target", r.target, "first", ignored)
	}
	r.good = use
	return r.good
}

// modes are those of this version; "" = the default.
var modes = []string{"", policy.Broadcast, policy.InCentral, policy.CentralOnly}

// tolerate returns a service config without what this version does not know of the object "warmpath", so that a server
// may be newer than its clients: fields, and modes. The config of a policy is left as it is. ignored names the first
// that was taken out; nil = none was.
func tolerate(config string) (reduced string, ignored error) {
	var whole map[string]json.RawMessage
	var choices []map[string]json.RawMessage
	if json.Unmarshal([]byte(config), &whole) != nil || json.Unmarshal(whole["loadBalancingConfig"], &choices) != nil {
		return config, nil
	}
	for _, choice := range choices {
		var c policy.Config
		newer := policy.Decode(choice["warmpath"], &c)
		if newer == nil && !slices.Contains(modes, c.Mode) {
			newer = fmt.Errorf("mode: %q", c.Mode)
		}
		if newer == nil || json.Unmarshal(choice["warmpath"], &c) != nil { // what cannot be read at all is refused later
			continue
		}
		if !slices.Contains(modes, c.Mode) {
			c.Mode = ""
		}
		choice["warmpath"], ignored = encode(c), newer
	}
	if ignored == nil {
		return config, nil
	}
	whole["loadBalancingConfig"] = encode(choices)
	return string(encode(whole)), ignored
}

// encode writes JSON that was read.
func encode(v any) json.RawMessage {
	text, _ := json.Marshal(v) // what was read can be written
	return text
}
