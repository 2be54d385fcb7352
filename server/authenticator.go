package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
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
	moved        signal         // given after each change of permissions, and of the deployments there are
	refused      rate.Sometimes // when refusals are logged

	tokens []func() // end the watches of their files; one goroutine at a time calls set and close, which use this

	// mu guards what follows. Only that of moved is taken under it.
	mu         sync.Mutex
	config     *Config               // of which principals and limits count; nil = none yet
	principals map[string]*principal // by name
}

// accessTable maps credentials to principals. It is never written again.
type accessTable struct {
	open bool // every call is unrestricted
	by   map[credential]*principal
}

// A credential is a token or the subject of a certificate.
type credential struct {
	token   digest
	subject string // "" = it is a token
}

// String names the credential in an error, without its secret.
func (c credential) String() string {
	if c.subject == "" {
		return "a token"
	}
	return fmt.Sprintf("the subject %q", c.subject)
}

func newAuthenticator(log *slog.Logger) *authenticator {
	a := &authenticator{
		log: log, unrestricted: unrestricted(), anonymous: newPrincipal(""),
		refused: rate.Sometimes{First: 1, Interval: 10 * time.Second},
	}
	a.table.Store(new(accessTable)) // no call passes before there is a config
	return a
}

// set puts the principals of a config into force. On an error, which names the field, nothing changes.
func (a *authenticator) set(c *Config) error {
	if err := a.take(c); err != nil {
		return err
	}
	a.close()
	for i := range c.Principals {
		path, first := c.Principals[i].TokenFile, true // the first reading is before Watch returns
		if path == "" {
			continue
		}
		a.tokens = append(a.tokens, fleetfile.Watch(path, func([]byte, error) {
			if !first {
				a.readTokens()
			}
			first = false
		}))
	}
	a.readTokens() // a file may have changed before it was watched
	return nil
}

// readTokens reads the tokens of the config in force again.
func (a *authenticator) readTokens() {
	if err := a.take(nil); err != nil {
		a.log.Warn("warmpath: a file of tokens was not accepted, the last good ones stay", "error", err)
	}
}

func (a *authenticator) close() {
	for _, stop := range a.tokens {
		stop()
	}
	a.tokens = nil
}

// take reads the tokens of a config, nil = of the one in force, and puts it into force. On an error, which names the
// field, nothing changes.
func (a *authenticator) take(c *Config) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c == nil {
		c = a.config
	}
	table := &accessTable{open: len(c.Principals) == 0, by: make(map[credential]*principal)}
	known := make(map[string]*principal, len(c.Principals)) // those that exist already, and new ones
	for i := range c.Principals {
		from := &c.Principals[i]
		p := cmp.Or(a.principals[from.Name], newPrincipal(from.Name))
		known[from.Name] = p
		all, err := from.credentials()
		if err != nil {
			return fmt.Errorf("principals[%d].%w", i, err)
		}
		for _, k := range all {
			if other := table.by[k]; other != nil && other != p {
				return fmt.Errorf("principals[%d]: %v is that of %s too", i, k, other.name)
			}
			table.by[k] = p
		}
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

// credentials are those of a principal. The error names the field.
func (c *Principal) credentials() (all []credential, err error) {
	for _, s := range c.Subjects {
		all = append(all, credential{subject: s})
	}
	if c.TokenFile == "" {
		return all, nil
	}
	raw, err := os.ReadFile(c.TokenFile)
	switch {
	case err != nil:
		return nil, fmt.Errorf("token_file: %w", err)
	case len(raw) > maxTokenFile:
		return nil, fmt.Errorf("token_file: %s is larger than %d bytes", c.TokenFile, maxTokenFile)
	case len(bytes.TrimSpace(raw)) == 0:
		return nil, fmt.Errorf("token_file: %s has no token", c.TokenFile)
	}
	for line := range strings.Lines(string(raw)) {
		if line = strings.TrimSpace(line); line != "" {
			d, err := parseToken(line)
			if err != nil {
				return nil, fmt.Errorf("token_file: %s: a token: %w", c.TokenFile, err)
			}
			all = append(all, credential{token: d})
		}
	}
	return all, nil
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
		if p := t.by[credential{token: digestOf(strings.TrimSpace(token))}]; p != nil && len(token) <= maxToken+1 {
			return p, nil
		}
		return nil, status.Error(codes.Unauthenticated, "the token is not known")
	case cert != nil:
		for _, name := range subjects(cert) {
			if p := t.by[credential{subject: name}]; p != nil {
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
	all = append(append(all, cert.DNSNames...), cert.Subject.CommonName)
	return slices.DeleteFunc(all, func(name string) bool { return name == "" })
}

// verified is the certificate that TLS verified on a connection, nil = none.
func verified(state *tls.ConnectionState) *x509.Certificate {
	if state == nil || len(state.VerifiedChains) == 0 || len(state.VerifiedChains[0]) == 0 {
		return nil
	}
	return state.VerifiedChains[0][0]
}

// authenticate returns the principal of a call, by its metadata and certificate. Its errors are statuses.
func (a *authenticator) authenticate(ctx context.Context) (*principal, error) {
	var cert *x509.Certificate
	if p, _ := peer.FromContext(ctx); p != nil {
		info, _ := p.AuthInfo.(credentials.TLSInfo)
		cert = verified(&info.State)
	}
	return a.identify(metadata.ValueFromIncomingContext(ctx, "authorization"), cert)
}

type principalKey struct{}

// principalOf is the principal of a call. One that did not pass the authenticator is unrestricted where the config has
// no principals, else anonymous.
func (s *Server) principalOf(ctx context.Context) *principal {
	if p, ok := ctx.Value(principalKey{}).(*principal); ok {
		return p
	}
	if s.authenticator.table.Load().open {
		return s.authenticator.unrestricted
	}
	return s.authenticator.anonymous
}

// revoked returns the status that ends a stream whose token or certificate no longer identifies its principal; nil =
// the stream goes on.
func (s *Server) revoked(ctx context.Context, p *principal) error {
	now, err := s.authenticator.authenticate(ctx)
	return replaced(p, now, err)
}

// replaced returns the status where what identified one principal identifies another one now, or none.
func replaced(p, now *principal, err error) error {
	switch {
	case err != nil:
		return status.Errorf(codes.Unauthenticated, "the principal is not known any more: %s", status.Convert(err).Message())
	case now != p:
		return status.Error(codes.Unauthenticated,
			"the config has another principal for this token or certificate now: call again")
	}
	return nil
}

// until waits for the end of a stream: of its reader, of the server, or of its principal.
func (s *Server) until(ctx context.Context, p *principal, read <-chan error) error {
	for {
		moved := s.authenticator.moved.wait()
		if err := s.revoked(ctx, p); err != nil {
			return err
		}
		select {
		case err := <-read:
			return err
		case <-s.draining.Done():
			return errDraining
		case <-moved:
		}
	}
}
