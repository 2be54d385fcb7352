package router

import (
	"slices"

	"github.com/warmpath/warmpath/internal/router/load"
)

// Retired are Routers that were replaced while something was reserved in them. Not safe for use by several goroutines.
type Retired []*Router

// Load returns what is reserved in them, by id of the replica. It drops those in which nothing is reserved any more.
func (all *Retired) Load() map[string]load.Peer {
	sums := make(map[string]load.Peer)
	*all = slices.DeleteFunc(*all, func(r *Router) bool {
		idle := true
		for _, rep := range r.View().Replicas() {
			ongoing, tokens := rep.Ongoing(), int64(rep.QueuedTokens())
			sum := sums[rep.ID]
			sum.Ongoing += ongoing
			sum.QueuedTokens += tokens
			sums[rep.ID] = sum
			idle = idle && ongoing == 0 && tokens == 0
		}
		return idle
	})
	return sums
}
