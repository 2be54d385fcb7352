package cacheview

import (
	"maps"
	"slices"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

// maxBlock bounds the block of an engine, in tokens.
const maxBlock = 256

// learnt is what reports show of models, by the names that requests may use; "" stands for replicas that declare none.
// It is never written, but replaced under Index.mu.
type learnt struct {
	// names are those under which reported blocks were hashed: the first that a replica declares stands for all of them.
	names map[string]string
	sizes map[string]int // tokens in a block
}

// Grain is how a prompt for this model is to be cut.
func (x *Index) Grain(model string) rendezvous.Grain {
	grain, sizes := x.o.Grain, x.learnt.Load().sizes
	if n, ok := sizes[model]; ok {
		grain.Tokens = n
	} else if n, ok := sizes[""]; ok {
		grain.Tokens = n
	}
	return grain
}

// Seed is what the prompt of a request is to be hashed with, so that its blocks are
// those of the reports.
func (x *Index) Seed(q *policy.Request) kvindex.Seed {
	return kvindex.SeedFor(x.learnt.Load().name(q.Model), q.Adapter, q.CacheSalt)
}

// name returns the name to hash a prompt for this model with. A request without model
// means the only one that is reported; one whose model no replica declares means the
// replicas that declare none.
func (l *learnt) name(model string) string {
	if name, ok := l.names[model]; ok {
		return name
	}
	if name, ok := l.names[""]; ok {
		return name
	}
	if model != "" {
		return model
	}
	only := ""
	for _, name := range l.names {
		if only != "" && name != only {
			return model
		}
		only = name
	}
	return only
}

// declare takes what a replica with reports declares.
func (l *learnt) declare(models []string) {
	for _, name := range orNone(models) {
		if _, ok := l.names[name]; !ok {
			l.names[name] = orNone(models)[0]
		}
	}
}

// learnNames takes what a member declares whose first report came. Called with mu held.
func (x *Index) learnNames(m *Member) {
	old := x.learnt.Load()
	next := &learnt{maps.Clone(old.names), old.sizes}
	next.declare(m.models)
	x.learnt.Store(next)
}

// renewNames replaces the names by what the members declare now. Called with mu held.
func (x *Index) renewNames(members []*Member) {
	next := &learnt{make(map[string]string), x.learnt.Load().sizes}
	for _, m := range members {
		if m.reported.Load() {
			next.declare(m.models)
		}
	}
	if len(next.names) > 0 {
		x.learnt.Store(next)
	}
}

// learnSize takes the block of the engine of a member; false if another replica of one of its models has blocks of
// another size, which makes their hashes others. Called with mu held.
func (x *Index) learnSize(m *Member, tokens int) bool {
	old := x.learnt.Load()
	switch {
	case tokens < 1 || tokens > maxBlock:
		return false
	case m.block == tokens && old.covers(m.models, tokens):
		return true
	}
	for _, other := range x.members {
		if other.block != 0 && other.block != tokens && share(other.models, m.models) {
			return false
		}
	}
	next := &learnt{old.names, maps.Clone(old.sizes)}
	for _, name := range orNone(m.models) {
		next.sizes[name] = tokens
	}
	x.learnt.Store(next)
	return true
}

// covers reports whether all of these models have blocks of so many tokens.
func (l *learnt) covers(models []string, tokens int) bool {
	return !slices.ContainsFunc(orNone(models), func(name string) bool { return l.sizes[name] != tokens })
}

// orNone returns the models that a replica declares, "" where there are none.
func orNone(models []string) []string {
	if len(models) == 0 {
		return none
	}
	return models
}

var none = []string{""}

// share reports whether two replicas have a model in common.
func share(a, b []string) bool {
	return slices.ContainsFunc(orNone(a), func(name string) bool { return slices.Contains(orNone(b), name) })
}
