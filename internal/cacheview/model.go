package cacheview

import (
	"maps"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/internal/kvindex"
)

// models are the names under which what is told was hashed, by the names that
// requests may use: the first that a replica declares stands for all of them, and ""
// for a replica that declares none.
type models struct {
	told atomic.Pointer[map[string]string] // replaced under Index.mu
}

// of returns the name to hash a prompt for this model with. A request that names no
// model means the only one that is told of; one whose model nobody declares means the
// replicas that declare none.
func (m *models) of(model string) string {
	told := m.told.Load()
	if told == nil {
		return model
	}
	if name, ok := (*told)[model]; ok {
		return name
	}
	if name, ok := (*told)[""]; ok {
		return name
	}
	if model != "" {
		return model
	}
	only := ""
	for _, name := range *told {
		if only != "" && name != only {
			return model
		}
		only = name
	}
	return only
}

// learn takes what a replica declares that is told of. Called with Index.mu held.
func (m *models) learn(declared []string) {
	next := make(map[string]string)
	if told := m.told.Load(); told != nil {
		next = maps.Clone(*told)
	}
	declare(next, declared)
	m.told.Store(&next)
}

// renew takes what members declare in place of what they did before. Called with Index.mu held.
func (m *models) renew(members []*Member) {
	next := make(map[string]string)
	for _, x := range members {
		if x.told.Load() {
			declare(next, x.models)
		}
	}
	if len(next) > 0 {
		m.told.Store(&next)
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
// those that are told of.
func (x *Index) Seed(q *routing.Request) kvindex.Seed {
	return kvindex.SeedFor(x.models.of(q.Model), q.Adapter, q.CacheSalt)
}
