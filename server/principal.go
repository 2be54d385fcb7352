package server

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A Principal is a program, a team or a tenant that may use the server. It is identified by a token in the metadata
// authorization ("Bearer TOKEN"), or by the subject of its certificate; the token counts where there are both.
type Principal struct {
	// Name is for the log; unique.
	Name string `json:"name"`
	// Token is its token, 16 to 4096 characters without blanks, or "sha256:" and the token's SHA-256 in hex.
	Token string `json:"token,omitempty"`
	// TokenFile is a file of tokens, one a line, each as in token. It is read again when it changes. Each of several counts, so
	// a new one can be given out before the old one goes.
	TokenFile string `json:"token_file,omitempty"`
	// Subjects are names in its certificate: a URI (SPIFFE id), a DNS name, or the common name. They need tls.client_ca.
	Subjects []string `json:"subjects,omitempty"`
	// Deployments are those that it may use; empty = all.
	Deployments []string `json:"deployments,omitempty"`
	// Trusted lets it learn what is cached where, and so what others asked: how much of a prompt matched, the exact load, the
	// index broadcast, and channelz.
	Trusted bool `json:"trusted,omitempty"`
	// Register lets it register replicas, to which others' prompts will go, where the deployment takes any.
	Register bool `json:"register,omitempty"`
	// Rate bounds its calls a second, each message of a stream counted, with a burst of one second; 0 = no bound.
	Rate int `json:"rate,omitempty"`
	// MaxCalls bounds its calls under way, watches included; 0 = 10,000.
	MaxCalls int `json:"max_calls,omitempty"`
	// MaxWatchers bounds its watches of all deployments; 0 = half of the server's max_watchers.
	MaxWatchers int `json:"max_watchers,omitempty"`
	// MaxReservations bounds its picks that count, of all modes in all deployments; 0 = half of the server's
	// max_reservations.
	MaxReservations int `json:"max_reservations,omitempty"`
}

// defaultMaxCalls is that of a principal that has none of its own.
const defaultMaxCalls = 10_000

// Bounds of a token, in bytes.
const minToken, maxToken = 16, 4096

// maxPrincipals bounds a config.
const maxPrincipals = 10_000

func validatePrincipals(all []Principal, t *TLS) error {
	if len(all) > maxPrincipals {
		return fmt.Errorf("more than %d", maxPrincipals)
	}
	seen := make(map[string]bool)
	for i := range all {
		c := &all[i]
		if err := c.validate(t); err != nil {
			return fmt.Errorf("[%d].%w", i, err)
		}
		if seen[c.Name] {
			return fmt.Errorf("[%d].name: %q comes twice", i, c.Name)
		}
		seen[c.Name] = true
	}
	return nil
}

func (c *Principal) validate(t *TLS) error {
	if err := checkName(c.Name); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	if c.Token == "" && c.TokenFile == "" && len(c.Subjects) == 0 {
		return errors.New("token: the principal has neither token, nor token_file, nor subjects")
	}
	if c.Token != "" {
		if _, err := parseToken(c.Token); err != nil {
			return fmt.Errorf("token: %w", err)
		}
	}
	if len(c.Subjects) > 0 && (t == nil || t.ClientCA == "") {
		return errors.New("subjects: they need tls.client_ca")
	}
	if slices.Contains(c.Subjects, "") {
		return errors.New("subjects: one is empty")
	}
	for _, f := range []struct {
		name  string
		value int
	}{{"rate", c.Rate}, {"max_calls", c.MaxCalls}, {"max_watchers", c.MaxWatchers}, {"max_reservations", c.MaxReservations}} {
		if f.value < 0 || f.value > 1<<24 {
			return fmt.Errorf("%s: %d is not between 0 and %d", f.name, f.value, 1<<24)
		}
	}
	return nil
}

// parseToken returns the digest of a token, or that which stands in its place.
func parseToken(s string) (d digest, err error) {
	if text, ok := strings.CutPrefix(s, "sha256:"); ok {
		if n, err := hex.Decode(d[:], []byte(text)[:min(len(text), 2*len(d))]); err != nil || n != len(d) || len(text) != 2*len(d) {
			return d, errors.New("what follows sha256: is not 64 hexadecimal digits")
		}
		return d, nil
	}
	if len(s) < minToken || len(s) > maxToken || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return d, fmt.Errorf("it is not %d to %d characters of printable ASCII without blanks", minToken, maxToken)
	}
	return digestOf(s), nil
}

// principal is a [Principal] at work. It stays the same while the config changes, and so does what it holds.
type principal struct {
	name  string
	rules atomic.Pointer[rules]

	calls, watches, held atomic.Int64 // under way; picks that count
	accounts             atomic.Int64 // in ledgers: of watches under way, and of those that ended a moment ago
}

// rules are what a config says of a principal.
type rules struct {
	trusted, registers            bool
	deployments                   map[string]bool // nil = all
	limiter                       *rate.Limiter   // nil = no bound
	maxCalls, maxWatches, maxHeld int64           // 0 = no bound
}

// newPrincipal returns one that may use nothing yet.
func newPrincipal(name string) *principal {
	p := &principal{name: name}
	p.rules.Store(&rules{deployments: map[string]bool{}})
	return p
}

// unrestricted is the principal of every call where the config has no principals.
func unrestricted() *principal {
	p := new(principal)
	p.rules.Store(&rules{trusted: true, registers: true})
	return p
}

// follow puts what a config says into force. The limiter goes on, lest a change of the config refill it.
func (p *principal) follow(from *Principal, limits *Config) {
	r := &rules{
		trusted: from.Trusted, registers: from.Register, maxCalls: defaultMaxCalls,
		maxWatches: int64(limits.MaxWatchers+1) / 2, maxHeld: int64(limits.MaxReservations+1) / 2,
	}
	for _, f := range []struct {
		own  int
		into *int64
	}{{from.MaxCalls, &r.maxCalls}, {from.MaxWatchers, &r.maxWatches}, {from.MaxReservations, &r.maxHeld}} {
		if f.own > 0 {
			*f.into = int64(f.own)
		}
	}
	for _, d := range from.Deployments {
		if r.deployments == nil {
			r.deployments = make(map[string]bool, len(from.Deployments))
		}
		r.deployments[d] = true
	}
	if from.Rate > 0 {
		r.limiter = rate.NewLimiter(rate.Limit(from.Rate), from.Rate)
		if old := p.rules.Load().limiter; old != nil {
			r.limiter = old
			r.limiter.SetLimit(rate.Limit(from.Rate))
			r.limiter.SetBurst(from.Rate)
		}
	}
	p.rules.Store(r)
}

// may reports whether it may use a deployment.
func (p *principal) may(deployment string) bool {
	r := p.rules.Load()
	return r.deployments == nil || r.deployments[deployment]
}

func (p *principal) trusted() bool { return p.rules.Load().trusted }

// own is a name that principals choose, made different for each of them.
func (p *principal) own(name string) string {
	if p.name == "" {
		return name
	}
	return p.name + "\x00" + name
}

// allow takes one call off the rate. Its error is a status.
func (p *principal) allow() error {
	if r := p.rules.Load(); r.limiter != nil && !r.limiter.Allow() {
		return status.Errorf(codes.ResourceExhausted, "the principal %s has reached its rate (%d calls a second)", p.name, r.limiter.Burst())
	}
	return nil
}

// pace waits until the rate allows one more, for reports that must not be lost: a sender of too many is read from more slowly.
func (p *principal) pace(ctx context.Context) error {
	if r := p.rules.Load(); r.limiter != nil {
		switch err := r.limiter.Wait(ctx); {
		case ctx.Err() != nil:
			return status.FromContextError(ctx.Err()).Err()
		case err != nil:
			return status.Errorf(codes.ResourceExhausted, "the principal %s has reached its rate (%d calls a second) until after the deadline", p.name, r.limiter.Burst())
		}
	}
	return nil
}

// take counts one more, unless most are there already; 0 = no bound.
func take(n *atomic.Int64, most int64) bool {
	if n.Add(1) > most && most > 0 {
		n.Add(-1)
		return false
	}
	return true
}

type principalKey struct{}

// principalOf is the principal of a call. One that did not pass the authenticator is unrestricted where the config has no
// principals, else anonymous.
func (s *Server) principalOf(ctx context.Context) *principal {
	if p, ok := ctx.Value(principalKey{}).(*principal); ok {
		return p
	}
	return s.authenticator.unidentified()
}
