package server

import (
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// open returns the deployments that a principal may use.
func (s *Server) open(p *principal) map[string]*deployment {
	all := *s.deployments.Load()
	if p.rules.Load().all() {
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
	names     map[string]bool // that requests may use
	declared  []string        // by replicas
	replicas  int
	atAddress func() map[string][]string // the ids of replicas by address, host:port, and by host
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
	c.atAddress = sync.OnceValue(func() map[string][]string {
		ids := make(map[string][]string)
		for _, m := range order {
			ids[m.Address] = append(ids[m.Address], m.ID)
			if host, _, err := net.SplitHostPort(m.Address); err == nil {
				ids[host] = append(ids[host], m.ID)
			}
		}
		return ids
	})
	return c
}

// ids returns the list with the ids of the replicas at the addresses in it.
func (c *catalogue) ids(allowed []string) []string {
	for _, address := range allowed {
		allowed = append(allowed, c.atAddress()[address]...)
	}
	return allowed
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
