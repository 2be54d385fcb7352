package cacheview

import (
	"slices"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A Scope is one pool of a View in which to find the replicas of a fleet that may be
// older.
type Scope struct {
	Fleet *Fleet
	View  policy.View
	Pool  policy.Pool
	Stale bool // the fleet is not the View's
}

// NewScope returns the scope of a fleet, which may be nil, in a View; Enter a pool next.
func NewScope(f *Fleet, v policy.View) Scope {
	return Scope{Fleet: f, View: v, Stale: f == nil || f.Epoch != v.Epoch()}
}

// Enter goes on to another pool.
func (s *Scope) Enter(pool policy.Pool) { s.Pool = pool }

// Take returns the replica at a place of the fleet, as it is now, if it is in the pool
// and available; else nil. O(log replicas).
func (s *Scope) Take(at int32) *policy.Replica {
	r := s.Fleet.Replicas[at]
	if s.Stale {
		if r = s.View.ByID(r.ID); r == nil {
			return nil
		}
	}
	if !s.Pool.Takes(r) {
		return nil
	}
	if s.Pool.Whole {
		return r
	}
	i, ok := slices.BinarySearchFunc(s.Pool.Replicas, r.Index(), func(o *policy.Replica, i int) int {
		return o.Index() - i
	})
	if !ok || s.Pool.Replicas[i] != r {
		return nil
	}
	return r
}
