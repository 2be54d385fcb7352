package server

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Bounds of one request.
const (
	maxExcluded   = 1000
	maxFallbacks  = 16
	maxCandidates = 256
	maxBlock      = 1 << 20 // bytes or tokens in a block
	maxLength     = 1 << 30 // of a prompt
)

// invalid is a request that is malformed.
func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// decodeKey fills the request from a message, which it aliases. Its errors are statuses that name the field.
func decodeKey(r *warmpathv1.ChooseReplicaRequest, q *policy.Request) error {
	k := r.GetKey()
	for _, f := range []struct{ name, value string }{
		{"deployment", r.GetDeployment()}, {"key.request_id", k.GetRequestId()}, {"key.model", k.GetModel()},
		{"key.adapter", k.GetAdapter()}, {"key.cache_salt", k.GetCacheSalt()}, {"pinned", r.GetPinned()},
		{"prefilled_by", r.GetPrefilledBy()},
	} {
		if len(f.value) > maxName {
			return invalid("%s: longer than %d bytes", f.name, maxName)
		}
	}
	if len(k.GetSession()) > requestkey.MaxSession {
		return invalid("key.session: longer than %d bytes", requestkey.MaxSession)
	}
	if len(k.GetParentSession()) > requestkey.MaxSession {
		return invalid("key.parent_session: longer than %d bytes", requestkey.MaxSession)
	}
	for name, ids := range map[string][]string{
		"excluded": r.GetExcluded(), "tried": r.GetTried(), "allowed": r.GetAllowed(),
	} {
		if len(ids) > maxExcluded {
			return invalid("%s: more than %d", name, maxExcluded)
		}
		for _, id := range ids {
			if len(id) > maxName {
				return invalid("%s: one is longer than %d bytes", name, maxName)
			}
		}
	}
	if r.GetMaxFallbacks() > maxFallbacks {
		return invalid("max_fallbacks: more than %d", maxFallbacks)
	}
	if n := r.GetMaxCandidates(); n > maxCandidates || n > 0 && r.GetMode() != warmpathv1.PickMode_PICK_MODE_QUERY {
		return invalid("max_candidates: more than %d, or mode is not PICK_MODE_QUERY", maxCandidates)
	}
	q.ID, q.Session = k.GetRequestId(), k.GetSession()
	q.SetParent(k.GetParentSession())
	q.State().Final = k.GetSessionFinal()
	q.Model, q.Adapter, q.CacheSalt = k.GetModel(), k.GetAdapter(), k.GetCacheSalt()
	q.Pin, q.Exclude, q.Allow = r.GetPinned(), r.GetExcluded(), r.GetAllowed()
	q.Priority = priorities[k.GetPriority()]
	prompt, err := decodePrompt(k)
	if err != nil {
		return err
	}
	q.SetPrompt(prompt)
	if n := k.GetPromptTokens(); n > 0 {
		q.PromptTokens = int(min(n, maxLength))
	}
	return nil
}

// priorities maps those of the protocol; an unknown one is normal.
var priorities = map[warmpathv1.Priority]int{
	warmpathv1.Priority_PRIORITY_LOW:  -1,
	warmpathv1.Priority_PRIORITY_HIGH: 1,
}

func decodePrompt(k *warmpathv1.RequestKey) (policy.Prompt, error) {
	switch p := k.GetPrompt().(type) {
	case *warmpathv1.RequestKey_Text:
		return policy.Prompt{Text: p.Text}, nil
	case *warmpathv1.RequestKey_TokenIds:
		return policy.Prompt{Tokens: p.TokenIds.GetIds()}, nil
	case *warmpathv1.RequestKey_BlockHashes:
		h, err := decodeHashes(p.BlockHashes)
		if err != nil {
			return policy.Prompt{}, invalid("key.block_hashes: %v", err)
		}
		return policy.Prompt{Hashed: h}, nil
	}
	return policy.Prompt{}, nil
}

// decodeHashes returns nil for a prompt without blocks.
func decodeHashes(b *warmpathv1.BlockHashes) (*policy.Hashed, error) {
	h := &policy.Hashed{Hashes: b.GetHashes()}
	switch size := b.GetBlock().(type) {
	case *warmpathv1.BlockHashes_BlockTokens:
		h.Size, h.Unit = int(min(size.BlockTokens, maxBlock+1)), 1
	case *warmpathv1.BlockHashes_BlockBytes:
		h.Size, h.Unit = int(min(size.BlockBytes, maxBlock+1)), policy.BytesPerToken
	}
	if h.Size < 1 || h.Size > maxBlock {
		return nil, fmt.Errorf("block_tokens or block_bytes must be between 1 and %d", maxBlock)
	}
	if h.Length = int(min(b.GetLength(), maxLength+1)); h.Length == 0 {
		h.Length = min(len(h.Hashes), maxLength) * h.Size
	}
	switch {
	case h.Length > maxLength:
		return nil, fmt.Errorf("length: more than %d", maxLength)
	case h.Length == 0 && len(h.Hashes) == 0:
		return nil, nil
	}
	return h, h.Check()
}

// open returns the deployments that a principal may use.
func (s *Server) open(p *principal) map[string]*deployment {
	all := *s.deployments.Load()
	if p.rules.Load().deployments == nil {
		return all
	}
	return filtered(all, func(d *deployment) bool { return p.may(d.name) })
}

func filtered(all map[string]*deployment, keep func(*deployment) bool) map[string]*deployment {
	some := maps.Clone(all)
	maps.DeleteFunc(some, func(_ string, d *deployment) bool { return !keep(d) })
	return some
}

// named returns the deployment with this name; with no name, the only one that the principal may use.
func (s *Server) named(c *principal, name string) (*deployment, error) {
	if len(name) > maxName {
		return nil, invalid("deployment: longer than %d bytes", maxName)
	}
	if name != "" && !c.may(name) {
		// Also where it does not exist: its name is not revealed.
		return nil, status.Errorf(codes.PermissionDenied, "the principal %q may not use the deployment %q", c.name, name)
	}
	all := s.open(c)
	if d := all[name]; d != nil {
		return d, nil
	}
	if name != "" {
		return nil, status.Errorf(codes.NotFound, "there is no deployment %q; there are %s", name, names(all))
	}
	if d := only(all); d != nil {
		return d, nil
	}
	return nil, invalid("name a deployment: there are %s", names(all))
}

// meant returns the deployment that a request means by its name or else by its model, and the base and the adapter
// where the model is "base:adapter".
func (s *Server) meant(c *principal, name, model string) (d *deployment, base, adapter string, err error) {
	if name != "" || model == "" {
		d, err = s.named(c, name)
	} else {
		d, err = s.byModel(c, model)
	}
	if err != nil || model == "" {
		return d, "", "", err
	}
	models := d.catalogue.Load()
	base, adapter = models.split(model)
	if models.declares() && !models.names[base] && base != d.name {
		return nil, "", "", status.Errorf(codes.NotFound, "deployment %s does not serve the model %q", d.name, base)
	}
	return d, base, adapter, nil
}

// byModel returns the deployment with the name of a model, or which serves it, or the only one where no models are
// declared. What stands before a colon may be the model, and what follows an adapter.
func (s *Server) byModel(c *principal, model string) (*deployment, error) {
	all := s.open(c)
	base, _, _ := strings.Cut(model, ":")
	for _, name := range []string{model, base} {
		if d := all[name]; d != nil {
			return d, nil
		}
		found := filtered(all, func(d *deployment) bool { return d.catalogue.Load().names[name] })
		if len(found) > 1 {
			return nil, invalid("model %q is served by several deployments; name one of %s", name, names(found))
		}
		if d := only(found); d != nil {
			return d, nil
		}
	}
	if d := only(all); d != nil && !d.catalogue.Load().declares() {
		return d, nil
	}
	return nil, status.Errorf(codes.NotFound, "no deployment serves the model %q", model)
}

func only(all map[string]*deployment) *deployment {
	if len(all) != 1 {
		return nil
	}
	for _, d := range all {
		return d
	}
	return nil
}

func names(all map[string]*deployment) string {
	return strings.Join(slices.Sorted(maps.Keys(all)), ", ")
}

// catalogue is the models that a deployment's config and replicas declare. It is replaced with the fleet, and never
// written.
type catalogue struct {
	names    map[string]bool // that requests may use
	declared []string        // by replicas
	replicas int
	ids      func(allowed []string) []string // the list with the ids of the replicas at the addresses in it
}

func newCatalogue(order []*member, models []string) *catalogue {
	c := &catalogue{names: make(map[string]bool), replicas: len(order)}
	for _, m := range order {
		for _, model := range m.Models {
			if !c.names[model] {
				c.names[model] = true
				c.declared = append(c.declared, model)
			}
		}
	}
	for _, model := range models {
		c.names[model] = true
	}
	byAddress := sync.OnceValue(func() map[string][]string { return idsByAddress(order) })
	c.ids = func(allowed []string) []string {
		for _, address := range allowed {
			allowed = append(allowed, byAddress()[address]...)
		}
		return allowed
	}
	return c
}

// idsByAddress are the ids of replicas by address, host:port, and by host.
func idsByAddress(order []*member) map[string][]string {
	ids := make(map[string][]string)
	for _, m := range order {
		host, _, err := net.SplitHostPort(m.Address)
		if ids[m.Address] = append(ids[m.Address], m.ID); err == nil {
			ids[host] = append(ids[host], m.ID)
		}
	}
	return ids
}

func (c *catalogue) declares() bool { return len(c.names) > 0 }

// split takes "base:adapter" apart, unless it is the name of a model.
func (c *catalogue) split(model string) (base, adapter string) {
	if c.names[model] {
		return model, ""
	}
	base, adapter, _ = strings.Cut(model, ":")
	return base, adapter
}

// canonical returns the replicas' own name of a model: hashes depend on it. Where they all declare one model, every
// name means that one.
func (c *catalogue) canonical(model string) string {
	if len(c.declared) == 1 {
		return c.declared[0]
	}
	return model
}

// notServing is the reason for which the deployment does not serve; empty = it does.
func (c *catalogue) notServing() string {
	if c.replicas == 0 {
		return "it has no replicas: none is configured, resolved or registered"
	}
	return ""
}

// catalogued is called with mu held when the fleet or the config has changed.
func (d *deployment) catalogued() {
	c := newCatalogue(d.roster.order, d.sources.config.Models)
	if before := d.catalogue.Swap(c); before == nil || (before.replicas == 0) != (c.replicas == 0) {
		d.moved()
	}
}
