package cacheview

import (
	"maps"
	"sync/atomic"

	"github.com/warmpath/warmpath/internal/rendezvous"
)

// grains are the blocks of tokens that engines report, by model; "" stands for replicas
// that declare none. The first report counts, as long as a replica holds such blocks.
type grains struct {
	fallback rendezvous.Grain
	learnt   atomic.Pointer[map[string]int] // replaced under Index.mu
}

// of returns the grain of a model.
func (g *grains) of(model string) rendezvous.Grain {
	grain := g.fallback
	if learnt := g.learnt.Load(); learnt != nil {
		if n, ok := (*learnt)[model]; ok {
			grain.Tokens = n
		} else if n, ok := (*learnt)[""]; ok {
			grain.Tokens = n
		}
	}
	return grain
}

var anyModel = []string{""} // of replicas that declare none

// maxBlock bounds the block of an engine, in tokens.
const maxBlock = 256

// learn takes the block of an engine that serves these models. It reports whether it
// is that of all of them. Called with Index.mu held.
func (g *grains) learn(models []string, tokens int) bool {
	if tokens < 1 || tokens > maxBlock {
		return false
	}
	if len(models) == 0 {
		models = anyModel
	}
	if g.learned(models, tokens) {
		return true
	}
	next := make(map[string]int)
	if old := g.learnt.Load(); old != nil {
		next = maps.Clone(*old)
	}
	fits := true
	for _, m := range models {
		if n, ok := next[m]; ok {
			fits = fits && n == tokens
			continue
		}
		next[m] = tokens
	}
	if fits {
		g.learnt.Store(&next)
	}
	return fits
}

// forget makes room for another block of an engine that serves these models. Called with
// Index.mu held.
func (g *grains) forget(models []string) {
	if len(models) == 0 {
		models = anyModel
	}
	next := maps.Clone(*g.learnt.Load())
	for _, m := range models {
		delete(next, m)
	}
	g.learnt.Store(&next)
}

// learned reports whether this block was learnt for all of these models, as it is with all
// but the first report of an engine.
func (g *grains) learned(models []string, tokens int) bool {
	learnt := g.learnt.Load()
	if learnt == nil {
		return false
	}
	for _, m := range models {
		if n, ok := (*learnt)[m]; !ok || n != tokens {
			return false
		}
	}
	return true
}
