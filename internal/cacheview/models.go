package cacheview

import (
	"maps"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
)

// models are the names under which reported blocks were hashed, by the names that
// requests may use: the first that a replica declares stands for all of them, and ""
// for a replica that declares none.
type models struct {
	names atomic.Pointer[map[string]string] // replaced under Index.mu
}

// of returns the name to hash a prompt for this model with. A request without model
// means the only one that is reported; one whose model no replica declares means the
// replicas that declare none.
func (m *models) of(model string) string {
	names := m.names.Load()
	if names == nil {
		return model
	}
	if name, ok := (*names)[model]; ok {
		return name
	}
	if name, ok := (*names)[""]; ok {
		return name
	}
	if model != "" {
		return model
	}
	only := ""
	for _, name := range *names {
		if only != "" && name != only {
			return model
		}
		only = name
	}
	return only
}

// learn takes what a replica with reports declares. Called with Index.mu held.
func (m *models) learn(declared []string) {
	next := make(map[string]string)
	if names := m.names.Load(); names != nil {
		next = maps.Clone(*names)
	}
	declare(next, declared)
	m.names.Store(&next)
}

// renew replaces the names by what the members declare now. Called with Index.mu held.
func (m *models) renew(members []*Member) {
	next := make(map[string]string)
	for _, x := range members {
		if x.reported.Load() {
			declare(next, x.models)
		}
	}
	if len(next) > 0 {
		m.names.Store(&next)
	}
}

func declare(names map[string]string, declared []string) {
	if len(declared) == 0 {
		names[""] = ""
	}
	for _, name := range declared {
		if _, ok := names[name]; !ok {
			names[name] = declared[0]
		}
	}
}

// Seed is what the prompt of a request is to be hashed with, so that its blocks are
// those of the reports.
func (x *Index) Seed(q *policy.Request) kvindex.Seed {
	return kvindex.SeedFor(x.models.of(q.Model), q.Adapter, q.CacheSalt)
}
