package server

import (
	"cmp"
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
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/strict"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A Principal is a program, a team or a tenant that may use the server. It is identified by a token in the metadata
// authorization ("Bearer TOKEN"), or by the subject of its certificate; the token counts where there are both.
type Principal struct {
	// Name is for the log; unique.
	Name string `json:"name"`
	// TokenFile is a file of tokens, one a line, all valid: a new token can be distributed before the old one is removed.
	// Each is 16 to 4096 characters without blanks, or "sha256:" and the token's SHA-256 in hex. The file is read again
	// when it changes.
	TokenFile string `json:"token_file,omitempty"`
	// Subjects are names in its certificate: a URI (SPIFFE id), a DNS name, or the common name. They need tls.ca.
	Subjects []string `json:"subjects,omitempty"`
	// Deployments that it may use; empty = all.
	Deployments []string `json:"deployments,omitempty"`
	// Trusted lets it read the contents of caches, and so the prompts of others: matched tokens, the exact load, the
	// index broadcast, and channelz.
	Trusted bool `json:"trusted,omitempty"`
	// Register lets it register replicas, which receive others' prompts, where the deployment has register.
	Register bool `json:"register,omitempty"`
	// Rate bounds its calls a second, each message of a stream counted, with a burst of one second; 0 = no bound. Its
	// calls under way, watches and reservations are bounded by its part of max_connections and max_reservations.
	Rate int `json:"rate,omitempty"`
}

// Bounds of a token, in bytes.
const minToken, maxToken = 16, 4096

// maxPrincipals bounds a config.
const maxPrincipals = 10_000

func (c *Config) checkPrincipals() error {
	if len(c.Principals) > maxPrincipals {
		return fmt.Errorf(": more than %d", maxPrincipals)
	}
	seen := make(map[string]bool)
	for i := range c.Principals {
		p := &c.Principals[i]
		if err := cmp.Or(p.validate(c), strict.Want(!seen[p.Name], "name: %q comes twice", p.Name)); err != nil {
			return fmt.Errorf("[%d].%w", i, err)
		}
		seen[p.Name] = true
	}
	return nil
}

func (p *Principal) validate(c *Config) error {
	for _, name := range p.Deployments {
		if _, ok := c.Deployments[name]; !ok {
			return fmt.Errorf("deployments: there is no deployment %q", name)
		}
	}
	return cmp.Or(
		strict.In("name: ", checkName(p.Name)),
		strict.Want(p.TokenFile != "" || len(p.Subjects) > 0,
			"token_file: the principal has neither token_file nor subjects"),
		strict.Want(len(p.Subjects) == 0 || c.TLS != nil && c.TLS.CA != "", "subjects: they need tls.ca"),
		strict.Want(!slices.Contains(p.Subjects, ""), "subjects: one is empty"),
		strict.Within("rate", p.Rate, 0, 1<<24),
	)
}

// parseToken returns the digest of a token, which is given itself or as sha256:HEX.
func parseToken(s string) (d digest, err error) {
	if text, ok := strings.CutPrefix(s, "sha256:"); ok {
		raw, err := hex.DecodeString(text)
		if err != nil || copy(d[:], raw) != len(d) || len(raw) != len(d) {
			return d, errors.New("what follows sha256: is not 64 hexadecimal digits")
		}
		return d, nil
	}
	blank := func(r rune) bool { return r <= ' ' || r >= 0x7f }
	if len(s) < minToken || len(s) > maxToken || strings.ContainsFunc(s, blank) {
		return d, fmt.Errorf("it is not %d to %d characters of printable ASCII without blanks", minToken, maxToken)
	}
	return digestOf(s), nil
}

// principal is the state of a [Principal]. It stays while the config changes.
type principal struct {
	name  string
	rules atomic.Pointer[rules]

	calls, held atomic.Int64 // under way; leases
	accounts    atomic.Int64 // in ledgers: of watches under way, and of those that ended a moment ago
}

// rules are the config of a principal, and its bounds.
type rules struct {
	*Principal
	none                          bool          // it may use no deployment
	limiter                       *rate.Limiter // nil = no bound
	maxCalls, maxWatches, maxHeld int64         // 0 = no bound
}

// newPrincipal returns one without permissions.
func newPrincipal(name string) *principal {
	p := &principal{name: name}
	p.rules.Store(&rules{Principal: new(Principal), none: true})
	return p
}

// unrestricted is the principal of every call where the config has no principals.
func unrestricted() *principal {
	p := new(principal)
	p.rules.Store(&rules{Principal: &Principal{Trusted: true, Register: true}})
	return p
}

// follow puts a config into force. The limiter stays: a change of the config must not refill it.
func (p *principal) follow(from *Principal, limits *Config) {
	own := *from
	own.Deployments = slices.Sorted(slices.Values(from.Deployments)) // may searches in them
	r := &rules{
		Principal:  &own,
		maxCalls:   int64(limits.maxWatchers()),
		maxWatches: int64((limits.maxWatchers() + 1) / 2),
		maxHeld:    int64((limits.MaxReservations + 1) / 2),
	}
	if from.Rate > 0 {
		r.limiter = cmp.Or(p.rules.Load().limiter, rate.NewLimiter(rate.Limit(from.Rate), from.Rate))
		r.limiter.SetLimit(rate.Limit(from.Rate))
		r.limiter.SetBurst(from.Rate)
	}
	p.rules.Store(r)
}

// all reports whether it may use all deployments.
func (r *rules) all() bool { return !r.none && len(r.Deployments) == 0 }

// may reports whether it may use a deployment.
func (p *principal) may(deployment string) bool {
	r := p.rules.Load()
	_, named := slices.BinarySearch(r.Deployments, deployment)
	return named || r.all()
}

func (p *principal) trusted() bool { return p.rules.Load().Trusted }

// own makes a name that clients choose unique to the principal.
func (p *principal) own(name string) string {
	if p.name == "" {
		return name
	}
	return p.name + "\x00" + name
}

// allow takes one call off the rate. Its error is a status.
func (p *principal) allow() error {
	if r := p.rules.Load(); r.limiter != nil && !r.limiter.Allow() {
		return status.Errorf(codes.ResourceExhausted, "the principal %s has reached its rate (%d calls a second)",
			p.name, r.limiter.Burst())
	}
	return nil
}

// pace waits until the rate allows one more message, for reports that must not be lost: flow control slows the sender
// down.
func (p *principal) pace(ctx context.Context) error {
	if r := p.rules.Load(); r.limiter != nil {
		switch err := r.limiter.Wait(ctx); {
		case ctx.Err() != nil:
			return status.FromContextError(ctx.Err()).Err()
		case err != nil:
			return status.Errorf(codes.ResourceExhausted,
				"the principal %s has reached its rate (%d calls a second) until after the deadline", p.name, r.limiter.Burst())
		}
	}
	return nil
}

// take adds one to a count, unless it is at most already; 0 = no bound.
func take(n *atomic.Int64, most int64) bool {
	if n.Add(1) > most && most > 0 {
		n.Add(-1)
		return false
	}
	return true
}

// reasonWithheld replaces a reason that reveals the contents of caches.
const reasonWithheld = "withheld"

// promptless are the policies that do not use prompts: their reasons reveal nothing of caches.
var promptless = map[string]bool{"round_robin": true, "power_of_two_choices": true, "consistent_hash": true}

// revealsCaches reports whether a policy's reason may depend on the contents of caches. Of a policy that uses prompts
// every reason does that is not the request's own: "round_robin" and "least_loaded" are its reasons where nothing is
// cached.
func revealsCaches(policyName string, r policy.Reason) bool {
	switch r {
	case "", policy.ReasonPinned, policy.ReasonNoKey, policy.ReasonRetry, policy.ReasonQueued:
		return false
	}
	return !promptless[policyName]
}

// withholdStatus removes the figures of a state that reveal the prompts of others: two readings of a count, of the
// index's size, or of the bytes sent to clients or servers, with a request between them, show what was cached.
func withholdStatus(a *warmpathv1.GetStatusResponse) {
	for _, d := range a.GetDeployments() {
		d.Index, d.BroadcastBytes, d.BroadcastMessages = nil, 0, 0
		d.CachedTokens, d.Shadow = nil, nil
		if d.Cluster != nil {
			d.Cluster.SentBytes, d.Cluster.ReceivedBytes = 0, 0
		}
		for _, r := range d.GetReplicas() {
			r.Events = nil
		}
		d.Decisions = withheldCounts(d.GetDecisions())
	}
}

// withheldCounts adds up the decisions of each policy whose reasons are withheld. Their order is another one then: the
// old one reveals the counts that were added up.
func withheldCounts(all []*warmpathv1.DecisionCount) []*warmpathv1.DecisionCount {
	sums := make(map[decided]uint64)
	for _, c := range all {
		d := decided{c.GetPolicy(), policy.Reason(c.GetReason())}
		if revealsCaches(d.policy, d.reason) {
			d.reason = reasonWithheld
		}
		sums[d] += c.GetCount()
	}
	return decisionCounts(sums)
}

// withheld returns a copy of an answer without the fields that reveal the prompts of others, the load among them: it
// contains the uncached part of earlier prompts.
func withheld(a *warmpathv1.ChooseReplicaResponse) *warmpathv1.ChooseReplicaResponse {
	a = proto.CloneOf(a)
	a.Candidates = nil
	withhold(a.Decision)
	if a.Prefill != nil {
		withhold(a.PrefillDecision)
	}
	return a
}

func withhold(d *warmpathv1.Decision) {
	d.MatchedTokens, d.Load = 0, 0
	for _, r := range []*string{&d.Reason, &d.Rule} {
		if revealsCaches(d.GetPolicy(), policy.Reason(*r)) {
			*r, d.Place = reasonWithheld, -1
		}
	}
}
