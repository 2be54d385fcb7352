package server

import (
	"bytes"
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

	"github.com/warmpath/warmpath/internal/fleetfile"
)

// digest is a token's SHA-256: tokens themselves are not kept.
type digest [sha256.Size]byte

func digestOf(token string) digest { return sha256.Sum256([]byte(token)) }

// maxTokenFile bounds a file of tokens, in bytes.
const maxTokenFile = 1 << 20

// An authenticator finds the principal of a call by its token or certificate.
type authenticator struct {
	log          *slog.Logger
	unrestricted *principal // of every call where the config has no principals
	anonymous    *principal // of a call without a valid token or certificate: it may use nothing
	table        atomic.Pointer[accessTable]
	moved        signal // given after each change of permissions, and of the deployments there are

	// setting is held by set and close. mu is taken under it.
	setting  sync.Mutex
	watchers map[string]*fleetfile.Watcher // by path

	// mu guards what follows. Only that of moved is taken under it.
	mu         sync.Mutex
	config     *Config               // of which principals and limits count; nil = none yet
	principals map[string]*principal // by name
}

// accessTable maps tokens and subjects of certificates to principals. It is never written again.
type accessTable struct {
	open    bool // every call is unrestricted
	tokens  map[digest]*principal
	subject map[string]*principal
}

func newAuthenticator(log *slog.Logger) *authenticator {
	a := &authenticator{
		log: log, unrestricted: unrestricted(), anonymous: newPrincipal(""), watchers: make(map[string]*fleetfile.Watcher),
	}
	a.table.Store(new(accessTable)) // no call passes before there is a config
	return a
}

// set puts the principals of a config into force. On an error, which names the field, nothing changes.
func (a *authenticator) set(c *Config) error {
	a.setting.Lock()
	defer a.setting.Unlock()
	if err := a.take(c); err != nil {
		return err
	}
	wanted := make(map[string]bool)
	for i := range c.Principals {
		if path := c.Principals[i].TokenFile; path != "" {
			wanted[path] = true
		}
	}
	for path := range wanted {
		if a.watchers[path] == nil {
			a.watchers[path] = fleetfile.WatchFile(path, func([]byte, error) { a.changed(path) })
		}
	}
	for path, w := range a.watchers {
		if !wanted[path] {
			_ = w.Close()
			delete(a.watchers, path)
		}
	}
	return nil
}

func (a *authenticator) take(c *Config) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	table, known, err := a.build(c)
	if err != nil {
		return err
	}
	for i := range c.Principals {
		known[c.Principals[i].Name].follow(&c.Principals[i], c)
	}
	for name, old := range a.principals {
		if known[name] == nil {
			old.rules.Store(a.anonymous.rules.Load()) // its streams end
		}
	}
	a.config, a.principals = c, known
	a.table.Store(table)
	a.moved.give()
	return nil
}

// changed reads the tokens again. On a failure the last good ones stay.
func (a *authenticator) changed(path string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.config == nil {
		return
	}
	table, _, err := a.build(a.config)
	if err != nil {
		a.log.Warn("warmpath: a file of tokens was not accepted, the last good ones stay", "path", path, "error", err)
		return
	}
	a.table.Store(table)
	a.moved.give()
}

// build returns the table of a config, and its principals by name: those that exist already, and new ones. Called with
// mu held.
func (a *authenticator) build(c *Config) (*accessTable, map[string]*principal, error) {
	t := &accessTable{
		open: len(c.Principals) == 0, tokens: make(map[digest]*principal), subject: make(map[string]*principal),
	}
	known := make(map[string]*principal, len(c.Principals))
	for i := range c.Principals {
		from := &c.Principals[i]
		p := a.principals[from.Name]
		if p == nil {
			p = newPrincipal(from.Name)
		}
		known[from.Name] = p
		digests, err := from.digests()
		if err != nil {
			return nil, nil, fmt.Errorf("principals[%d].%w", i, err)
		}
		for _, d := range digests {
			if other := t.tokens[d]; other != nil && other != p {
				return nil, nil, fmt.Errorf("principals[%d]: a token is that of %s too", i, other.name)
			}
			t.tokens[d] = p
		}
		for _, s := range from.Subjects {
			if other := t.subject[s]; other != nil && other != p {
				return nil, nil, fmt.Errorf("principals[%d].subjects: %q is %s's too", i, s, other.name)
			}
			t.subject[s] = p
		}
	}
	return t, known, nil
}

// digests are those of a principal's tokens.
func (c *Principal) digests() ([]digest, error) {
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

// unidentified is the principal of a call that did not pass the authenticator.
func (a *authenticator) unidentified() *principal {
	if a.table.Load().open {
		return a.unrestricted
	}
	return a.anonymous
}

// identify returns the principal of these values of authorization and this verified certificate, nil = none. Its
// errors are statuses.
func (a *authenticator) identify(authorization []string, cert *x509.Certificate) (*principal, error) {
	t := a.table.Load()
	switch {
	case t.open:
		return a.unrestricted, nil
	case len(authorization) > 1:
		return nil, status.Error(codes.Unauthenticated, "authorization comes more than once")
	case len(authorization) == 1:
		scheme, token, _ := strings.Cut(authorization[0], " ")
		if !strings.EqualFold(scheme, "bearer") {
			return nil, status.Error(codes.Unauthenticated, `authorization is not "Bearer TOKEN"`)
		}
		if p := t.tokens[digestOf(strings.TrimSpace(token))]; p != nil && len(token) <= maxToken+1 {
			return p, nil
		}
		return nil, status.Error(codes.Unauthenticated, "the token is not known")
	case cert != nil:
		for _, name := range subjects(cert) {
			if p := t.subject[name]; p != nil {
				return p, nil
			}
		}
		return nil, status.Error(codes.Unauthenticated, "no principal has the subject of this certificate")
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

func (a *authenticator) close() {
	a.setting.Lock()
	defer a.setting.Unlock()
	for path, w := range a.watchers {
		_ = w.Close()
		delete(a.watchers, path)
	}
}
