package server

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/fleet"
)

type digest [sha256.Size]byte

func digestOf(token string) digest { return sha256.Sum256([]byte(token)) }

// maxTokenFile bounds a file of tokens, in bytes.
const maxTokenFile = 1 << 20

// A gate knows callers by what they show. Tokens are kept as digests under a key of this process, so how long a search
// takes tells nothing about them.
type gate struct {
	log    *slog.Logger
	key    [sha256.Size]byte
	anyone *caller
	nobody *caller
	table  atomic.Pointer[accessTable]
	moved  signal // given after each change of who may do what, and of the deployments there are

	// setting is held by set and close. mu is taken under it.
	setting  sync.Mutex
	watchers map[string]*fleet.Watcher // by path

	// mu guards what follows. Only that of moved is taken under it.
	mu      sync.Mutex
	config  *Config            // of which callers and limits count; nil = none yet
	callers map[string]*caller // by name
}

// accessTable is who is known by what. It is never written again.
type accessTable struct {
	open    bool // nobody is asked
	tokens  map[digest]*caller
	subject map[string]*caller
}

func newGate(log *slog.Logger) *gate {
	g := &gate{log: log, anyone: anyone(), nobody: new(caller), watchers: make(map[string]*fleet.Watcher)}
	g.nobody.rules.Store(&rules{deployments: map[string]bool{}})
	g.table.Store(new(accessTable)) // nobody passes before there is a config
	_, _ = rand.Read(g.key[:])
	return g
}

// set puts the callers of a config into force, or returns an error that names the field and leaves all as it was.
func (g *gate) set(c *Config) error {
	g.setting.Lock()
	defer g.setting.Unlock()
	if err := g.take(c); err != nil {
		return err
	}
	wanted := make(map[string]bool)
	for i := range c.Callers {
		if path := c.Callers[i].TokenFile; path != "" {
			wanted[path] = true
		}
	}
	for path := range wanted {
		if g.watchers[path] == nil {
			g.watchers[path] = fleet.WatchFile(path, func([]byte, error) { g.changed(path) })
		}
	}
	for path, w := range g.watchers {
		if !wanted[path] {
			_ = w.Close()
			delete(g.watchers, path)
		}
	}
	return nil
}

func (g *gate) take(c *Config) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	table, known, err := g.build(c)
	if err != nil {
		return err
	}
	for i := range c.Callers {
		known[c.Callers[i].Name].follow(&c.Callers[i], c)
	}
	for name, old := range g.callers {
		if known[name] == nil {
			old.rules.Store(g.nobody.rules.Load()) // what it still has open ends
		}
	}
	g.config, g.callers = c, known
	g.table.Store(table)
	g.moved.give()
	return nil
}

// changed reads the tokens again. Where that fails those known stay.
func (g *gate) changed(path string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.config == nil {
		return
	}
	table, _, err := g.build(g.config)
	if err != nil {
		g.log.Warn("warmpath: a file of tokens was not taken, the last good ones stay", "path", path, "error", err)
		return
	}
	g.table.Store(table)
	g.moved.give()
}

// build returns the table of a config, and its callers by name: those that are known already, and new ones. Called with
// mu held.
func (g *gate) build(c *Config) (*accessTable, map[string]*caller, error) {
	t := &accessTable{open: len(c.Callers) == 0, tokens: make(map[digest]*caller), subject: make(map[string]*caller)}
	known := make(map[string]*caller, len(c.Callers))
	for i := range c.Callers {
		from := &c.Callers[i]
		who := g.callers[from.Name]
		if who == nil {
			who = &caller{name: from.Name}
			who.rules.Store(g.nobody.rules.Load())
		}
		known[from.Name] = who
		digests, err := from.digests()
		if err != nil {
			return nil, nil, fmt.Errorf("callers[%d].%w", i, err)
		}
		for _, d := range digests {
			k := g.keyed(d)
			if other := t.tokens[k]; other != nil && other != who {
				return nil, nil, fmt.Errorf("callers[%d]: a token is that of %s too", i, other.name)
			}
			t.tokens[k] = who
		}
		for _, s := range from.Subjects {
			if other := t.subject[s]; other != nil && other != who {
				return nil, nil, fmt.Errorf("callers[%d].subjects: %q is %s's too", i, s, other.name)
			}
			t.subject[s] = who
		}
	}
	return t, known, nil
}

// digests are those of a caller's tokens.
func (c *Caller) digests() ([]digest, error) {
	var all []digest
	if c.Token != "" {
		d, err := parseToken(c.Token)
		if err != nil {
			return nil, fmt.Errorf("token: %w", err)
		}
		all = append(all, d)
	}
	if c.TokenFile == "" {
		return all, nil
	}
	raw, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("token_file: %w", err)
	}
	if len(raw) > maxTokenFile {
		return nil, fmt.Errorf("token_file: %s is larger than %d bytes", c.TokenFile, maxTokenFile)
	}
	n := len(all)
	for line := range bytes.Lines(raw) {
		text := strings.TrimSpace(string(line))
		if text == "" {
			continue
		}
		d, err := parseToken(text)
		if err != nil {
			return nil, fmt.Errorf("token_file: %s: a token: %w", c.TokenFile, err)
		}
		all = append(all, d)
	}
	if len(all) == n {
		return nil, fmt.Errorf("token_file: %s has no token", c.TokenFile)
	}
	return all, nil
}

func (g *gate) keyed(d digest) (k digest) {
	mac := hmac.New(sha256.New, g.key[:])
	mac.Write(d[:])
	mac.Sum(k[:0])
	return k
}

// stranger is who calls without having been asked.
func (g *gate) stranger() *caller {
	if g.table.Load().open {
		return g.anyone
	}
	return g.nobody
}

// identify returns who shows these values of authorization and this certificate, which was verified, or nil. Its errors
// are statuses.
func (g *gate) identify(authorization []string, cert *x509.Certificate) (*caller, error) {
	t := g.table.Load()
	switch {
	case t.open:
		return g.anyone, nil
	case len(authorization) > 1:
		return nil, status.Error(codes.Unauthenticated, "authorization comes more than once")
	case len(authorization) == 1:
		scheme, token, _ := strings.Cut(authorization[0], " ")
		if !strings.EqualFold(scheme, "bearer") {
			return nil, status.Error(codes.Unauthenticated, `authorization is not "Bearer TOKEN"`)
		}
		if c := t.tokens[g.keyed(digestOf(strings.TrimSpace(token)))]; c != nil && len(token) <= maxToken+1 {
			return c, nil
		}
		return nil, status.Error(codes.Unauthenticated, "the token is not known")
	case cert != nil:
		for _, name := range subjects(cert) {
			if c := t.subject[name]; c != nil {
				return c, nil
			}
		}
		return nil, status.Error(codes.Unauthenticated, "no caller has the subject of this certificate")
	}
	return nil, status.Error(codes.Unauthenticated, `a token is missing: send authorization "Bearer TOKEN"`)
}

// subjects are the names of a certificate, the most exact kind first.
func subjects(cert *x509.Certificate) []string {
	var all []string
	for _, u := range cert.URIs {
		all = append(all, u.String())
	}
	all = append(all, cert.DNSNames...)
	if cn := cert.Subject.CommonName; cn != "" {
		all = append(all, cn)
	}
	return all
}

func (g *gate) close() {
	g.setting.Lock()
	defer g.setting.Unlock()
	for path, w := range g.watchers {
		_ = w.Close()
		delete(g.watchers, path)
	}
}
