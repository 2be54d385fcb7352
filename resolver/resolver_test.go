package resolver

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/internal/fleet"
	"github.com/warmpath/warmpath/internal/target"
	_ "github.com/warmpath/warmpath/resolver/file"
)

// clientConn records what a resolver reports.
type clientConn struct {
	resolver.ClientConn // nil: nothing else may be called
	states              chan resolver.State
}

func newClientConn() *clientConn {
	return &clientConn{states: make(chan resolver.State, 1000)}
}

// UpdateState answers like a channel that cannot use the state; a resolver must ignore that.
func (c *clientConn) UpdateState(s resolver.State) error {
	c.states <- s
	return errors.New("bad resolver state")
}

func (c *clientConn) next(t *testing.T) resolver.State {
	t.Helper()
	select {
	case s := <-c.states:
		return s
	case <-time.After(30 * time.Second):
		require.Fail(t, "no state")
		return resolver.State{}
	}
}

func ids(s resolver.State) []string {
	ids := []string{}
	for _, ep := range s.Endpoints {
		ids = append(ids, fleet.FromEndpoint(ep).ID)
	}
	return ids
}

// files returns a builder of warmpath-file targets.
func files(l *slog.Logger) fileBuilder {
	return target.Imported[target.FileScheme].NewBuilder(l).(fileBuilder)
}

type fileBuilder interface {
	resolver.Builder
	resolver.AuthorityOverrider
}

// logged is a log that may be read while it is written.
type logged struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func parse(t *testing.T, target string) resolver.Target {
	t.Helper()
	u, err := url.Parse(target)
	require.NoError(t, err)
	return resolver.Target{URL: *u}
}

func TestRegistered(t *testing.T) {
	assert.IsType(t, NewBuilder(), resolver.Get("warmpath"))
	assert.NotNil(t, resolver.Get("warmpath-file"))
}

func TestStaticTargets(t *testing.T) {
	for _, tt := range []struct {
		target    string
		ids       []string
		addresses []string
	}{
		{"warmpath:///a:1,b:2", []string{"a:1", "b:2"}, []string{"a:1", "b:2"}},
		{"warmpath:a:1,b:2", []string{"a:1", "b:2"}, []string{"a:1", "b:2"}},
		{"warmpath:/a:1", []string{"a:1"}, []string{"a:1"}},
		{"WARMPATH:///a:1", []string{"a:1"}, []string{"a:1"}},
		{"warmpath:///x=a:1,y=a:2", []string{"x", "y"}, []string{"a:1", "a:2"}},
		{"warmpath:///[::1]:1, [::2]:1", []string{"[::1]:1", "[::2]:1"}, []string{"[::1]:1", "[::2]:1"}},
		{"warmpath:[::1]:1", []string{"[::1]:1"}, []string{"[::1]:1"}},
		{"warmpath:///[fe80::1%25eth0]:1", []string{"[fe80::1%eth0]:1"}, []string{"[fe80::1%eth0]:1"}},
		{"warmpath:[fe80::1%25eth0]:1", []string{"[fe80::1%eth0]:1"}, []string{"[fe80::1%eth0]:1"}},
	} {
		t.Run(tt.target, func(t *testing.T) {
			require.NoError(t, Check(tt.target))
			b := NewBuilder()
			target := parse(t, tt.target)
			authority := b.(resolver.AuthorityOverrider).OverrideAuthority(target)
			assert.Equal(t, "warmpath.invalid", authority)
			cc := newClientConn()
			// Twice, as a channel that leaves idleness does.
			for range 2 {
				r, err := b.Build(target, cc, resolver.BuildOptions{Authority: authority})
				require.NoError(t, err)
				require.Len(t, cc.states, 1, "sent within Build")
				state := cc.next(t)
				assert.Equal(t, tt.ids, ids(state))
				for i, ep := range state.Endpoints {
					assert.Equal(t, tt.addresses[i], ep.Addresses[0].Addr)
					assert.NotEmpty(t, ep.Addresses[0].ServerName)
					assert.Equal(t, ep.Addresses[0], state.Addresses[i])
				}
				r.ResolveNow(resolver.ResolveNowOptions{})
				r.Close()
				assert.Empty(t, cc.states)
			}
		})
	}
}

func TestRefusedTargets(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.yaml")
	require.NoError(t, os.WriteFile(broken, []byte("replicas: [{id: a}]"), 0o600))
	for _, tt := range []struct{ target, want string }{
		{"warmpath:///", "names no replica; want warmpath:///host:port"},
		{"warmpath:", "names no replica"},
		{"warmpath://server/deployment", `server 1: address: "server" is not host:port`},
		{"warmpath://a:1,b:0/d", `server 2: address: port "0"`},
		{"warmpath://a:1,,b:1/d", "server 2: address: missing"},
		{"warmpath://a:1,a:1/d", "server 2: a:1 is there twice"},
		{"warmpath://a:1/d?x", "neither ? nor #"},
		{"warmpath://a:1", "no deployment is named"},
		{"warmpath://u@/a:1", "credentials do not belong into a target; want warmpath://host:port,host:port/deployment"},
		{"warmpath:///a:1,a:1", `warmpath: entry 2 ("a:1"): address: a:1 is already the address of entry 1`},
		{"warmpath:///a:1,b", `warmpath: entry 2 ("b"): address: "b" is not host:port`},
		{"warmpath:///a:1,,b:1", "entry 2 is empty"},
		{"warmpath:///a:1/b", `port "1/b"`},
		{"warmpath://a:1,b:2", "or three slashes, warmpath:///host:port,host:port, for replicas"},
		{"warmpath:///a:1?x=y", "neither ? nor #"},
		{"warmpath:///a:1?", "neither ? nor #"},
		{"warmpath:///a:1#x", "neither ? nor #"},
		{"warmpath:a%zz:1", "invalid URL escape"},
		{"warmpath-file:///", "names no file; want warmpath-file:///path"},
		{"warmpath-file:", "names no file"},
		{"warmpath-file://etc/fleet.yaml", "a file has no host; want warmpath-file:///path with three slashes"},
		{"warmpath-file:///fleet.yaml?x", "neither ? nor #"},
		{"warmpath-file:///no/such/fleet.yaml", "/no/such/fleet.yaml: no such file"},
		{"warmpath-file://" + dir, "not a regular file"},
		{"warmpath-file://" + broken, broken + ": replicas[0].address: missing"},
	} {
		t.Run(tt.target, func(t *testing.T) {
			assert.ErrorContains(t, Check(tt.target), tt.want)
			target := parse(t, tt.target)
			for _, b := range []resolver.Builder{NewBuilder(), files(nil)} {
				if b.Scheme() != target.URL.Scheme {
					continue
				}
				assert.Equal(t, "warmpath.invalid", b.(resolver.AuthorityOverrider).OverrideAuthority(target))
				cc := newClientConn()
				r, err := b.Build(target, cc, resolver.BuildOptions{})
				assert.ErrorContains(t, err, tt.want)
				assert.Nil(t, r)
				assert.Empty(t, cc.states)
			}
		})
	}
	// What grpc would pass to the dns resolver, with an obscure error.
	assert.ErrorContains(t, Check("warmpath://a:1,b:x"), "the target begins with warmpath:///")
	assert.ErrorContains(t, Check("warmpath:///%zz"), "the target begins with warmpath:///")
	assert.NoError(t, Check("dns:///nowhere"))
	assert.NoError(t, Check("localhost:50051"))
}

// A user's choice of authority applies to every replica.
func TestChosenAuthority(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	write(t, path, "replicas: [{address: 'a:1'}, {address: 'b:1', server_name: b}]")
	for _, b := range []resolver.Builder{NewBuilder(), files(nil)} {
		target := parse(t, "warmpath:///a:1,b:1")
		if b.Scheme() == "warmpath-file" {
			target = parse(t, "warmpath-file://"+path)
		}
		cc := newClientConn()
		r, err := b.Build(target, cc, resolver.BuildOptions{Authority: "chosen.example"})
		require.NoError(t, err)
		state := cc.next(t)
		r.Close()
		require.Len(t, state.Endpoints, 2)
		for _, ep := range state.Endpoints {
			assert.Empty(t, ep.Addresses[0].ServerName)
			assert.NotEmpty(t, fleet.FromEndpoint(ep).ID)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

func one(id string) string { return fmt.Sprintf("replicas: [{id: %s, address: '%s:1'}]", id, id) }

func TestFileTargets(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	require.NoError(t, os.Mkdir("sub dir", 0o700))
	write(t, "fleet.yaml", one("top"))
	write(t, "sub dir/a?b.yaml", one("sub"))
	for target, want := range map[string]string{
		"warmpath-file://" + dir + "/fleet.yaml":         "top",
		"warmpath-file:" + dir + "/fleet.yaml":           "top",
		"warmpath-file:fleet.yaml":                       "top",
		"warmpath-file:./sub%20dir/../fleet.yaml":        "top",
		"warmpath-file:sub%20dir/a%3Fb.yaml":             "sub",
		"warmpath-file://" + dir + "/sub dir/a%3Fb.yaml": "sub",
	} {
		t.Run(target, func(t *testing.T) {
			require.NoError(t, Check(target))
			b, cc := files(nil), newClientConn()
			authority := b.OverrideAuthority(parse(t, target))
			r, err := b.Build(parse(t, target), cc, resolver.BuildOptions{Authority: authority})
			require.NoError(t, err)
			require.Len(t, cc.states, 1, "sent within Build")
			state := cc.next(t)
			assert.Equal(t, []string{want}, ids(state))
			assert.Equal(t, want+":1", state.Endpoints[0].Addresses[0].ServerName)
			r.Close()
		})
	}
}

func TestFileChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	write(t, path, one("a"))
	var log logged
	b := files(slog.New(slog.NewTextHandler(&log, nil)))
	cc := newClientConn()
	target := parse(t, "warmpath-file://"+path)
	r, err := b.Build(target, cc, resolver.BuildOptions{Authority: b.OverrideAuthority(target)})
	require.NoError(t, err)
	assert.Equal(t, []string{"a"}, ids(cc.next(t)))

	write(t, path, "replicas: [{id: b, address: 'b:1', zone: z, weight: 2, max_ongoing_requests: 3, adapters: [x]}, {id: a, address: 'a:1'}]")
	state := cc.next(t)
	assert.Equal(t, []string{"b", "a"}, ids(state))
	attrs := fleet.FromEndpoint(state.Endpoints[0])
	assert.Equal(t, "z", attrs.Zone)
	assert.Equal(t, 2.0, attrs.Weight)
	assert.Equal(t, 3, attrs.MaxOngoing)
	assert.Equal(t, []string{"x"}, attrs.Adapters)
	assert.Equal(t, "b:1", state.Endpoints[0].Addresses[0].ServerName)

	broken := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Count(log.String(), "level=WARN") == n }, 30*time.Second, time.Millisecond)
	}
	write(t, path, "replicas: [{id: c}]")
	broken(1)
	require.NoError(t, os.Remove(path))
	broken(2)
	assert.Empty(t, cc.states, "the last good fleet stays")
	write(t, path, one("d"))
	assert.Equal(t, []string{"d"}, ids(cc.next(t)))
	write(t, path, "replicas: []")
	assert.Empty(t, cc.next(t).Endpoints)
	r.Close()

	text := log.String()
	assert.Equal(t, 2, strings.Count(text, "level=WARN msg=\"warmpath: the fleet file is broken, the last good fleet stays\""), text)
	assert.Contains(t, text, "replicas=2 error=\""+path+": replicas[0].address: missing; want host:port\"")
	assert.Contains(t, text, "no such file")
	assert.Equal(t, 1, strings.Count(text, "level=INFO msg=\"warmpath: the fleet file is good again\""), text)
}

// A channel keeps its authority while its resolver is rebuilt over a file that has changed, or that did not exist
// at first.
func TestFileAuthorityOutlivesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	target := parse(t, "warmpath-file://"+path)
	b := files(nil)
	early := b.OverrideAuthority(target)
	assert.Equal(t, "warmpath.invalid", early)
	write(t, path, one("a"))
	late := b.OverrideAuthority(target)
	assert.Equal(t, early, late, "unchanged")
	write(t, path, one("b"))
	for _, authority := range []string{early, late} {
		cc := newClientConn()
		r, err := b.Build(target, cc, resolver.BuildOptions{Authority: authority})
		require.NoError(t, err)
		state := cc.next(t)
		r.Close()
		assert.Equal(t, "b:1", state.Endpoints[0].Addresses[0].ServerName)
	}
}

func FuzzTarget(f *testing.F) {
	for _, s := range []string{
		"warmpath:///a:1,b:2", "warmpath:///x=[::1]:1", "warmpath:a:1", "warmpath://s/d", "warmpath:///[fe80::1%25e]:1",
		"warmpath:///a:1,%2C:2", "warmpath:///%00:1", "warmpath:?", "warmpath:///a:1#", "warmpath://a:1,b:2/d", "warmpath://u:p@a:1/", "warmpath://[::1]:1,x:2/",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := url.Parse(s)
		if err != nil || u.Scheme != Scheme {
			return
		}
		b := NewBuilder()
		target := resolver.Target{URL: *u}
		authority := b.(resolver.AuthorityOverrider).OverrideAuthority(target)
		require.NotEmpty(t, authority)
		require.NotContains(t, authority, "/")
		require.Empty(t, strings.Trim(authority, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:[]"))
		if asksServer(*u) {
			_, err := parseServers(*u)
			require.Equal(t, err == nil, Check(u.String()) == nil, "%q", u.String())
			require.Equal(t, "warmpath.invalid", authority)
			return
		}
		cc := newClientConn()
		r, err := b.Build(target, cc, resolver.BuildOptions{Authority: authority})
		// Check gets the text itself, which the parser may have corrected.
		require.Equal(t, err == nil, Check(u.String()) == nil, "%q", u.String())
		if err != nil {
			require.Equal(t, "warmpath.invalid", authority)
			require.Empty(t, cc.states)
			return
		}
		r.Close()
		state := <-cc.states
		require.NotEmpty(t, state.Endpoints)
		seen := map[string]bool{}
		for _, ep := range state.Endpoints {
			id := fleet.FromEndpoint(ep).ID
			require.False(t, id == "" || seen[id])
			seen[id] = true
			require.Len(t, ep.Addresses, 1)
		}
	})
}
