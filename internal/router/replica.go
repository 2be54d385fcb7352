package router

import (
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/state"
)

// A Member is one replica as the host reports it to [Fleet.Set].
type Member struct {
	policy.Attributes
	// Host is the host's own handle, given back by Replica.Host. It must be
	// comparable; a pointer as a rule.
	Host any
}

// live is the part of a replica that outlives changes of its attributes.
// Everything is written under the Router's mutex; what state.Replica has may be read by
// policies and metrics without it.
type live struct {
	state.Replica
	number  uint32 // of the Router's giving; set once
	outlier *outlier.Replica

	// Guarded by the Router's mutex.
	waiters  line
	refusals refusals
	streams  int64     // what the connections take; state.NoBound = not known
	drains   time.Time // since when it takes no new sessions

}

func newLive(number uint32) *live {
	l := &live{number: number, waiters: line{order: served}, streams: state.NoBound, refusals: refusals{most: state.NoBound}}
	l.Owner = l
	l.outlier = outlier.NewReplica(l)
	return l
}

// liveOf returns the live part of a replica of a Router.
func liveOf(r *policy.Replica) *live { return r.State().Owner.(*live) }

// limit sets how many reservations the replica may have at once; not positive = no bound.
func (l *live) limit(n int) {
	l.Capacity.Store(bounded(n))
	l.bound()
}

// bounded returns n, where it bounds anything.
func bounded(n int) int64 {
	if n <= 0 {
		return state.NoBound
	}
	return int64(n)
}

// Bookings implements [outlier.Host].
func (l *live) Bookings() int64 { return l.Ongoing() }

// Admit implements [outlier.Host].
func (l *live) Admit(ok bool) { l.Set(state.Barred, !ok) }

// Draining implements [outlier.Host].
func (l *live) Draining() bool { return l.Flags.Load()&(state.Leaving|state.Declared) != 0 }

func serves(r *policy.Replica, model string) bool {
	return len(r.Models) == 0 || slices.Contains(r.Models, model)
}

// leaves reports whether the replica reported itself that it drains.
func leaves(r *policy.Replica) bool { return r.State().Flags.Load()&state.Leaving != 0 }
