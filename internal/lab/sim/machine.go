package sim

import (
	"strconv"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/lab/enginesim"
	"github.com/warmpath/warmpath/internal/router"
)

// machine is one engine and its place in the fleet.
type machine struct {
	id     string
	engine *enginesim.Engine
	due    time.Duration // when its pass ends; never if it is idle
	member bool          // it is in the fleet
	pastKV float64       // ActiveKV of its engines before it restarted
}

// newMachine adds machine i with an empty cache. Where engines differ, machines take turns.
func (r *run) newMachine(i int) error {
	m := &machine{id: "r" + strconv.Itoa(i), due: never, member: true}
	cfg := r.Engines[i%len(r.Engines)]
	cfg.Listener = r.listener(m)
	var err error
	if m.engine, err = enginesim.New(cfg); err != nil {
		return err
	}
	r.machines = append(r.machines, m)
	r.byID[m.id] = m
	r.fleet.Watch(m.engine)
	return nil
}

// held reports whether an engine of the fleet has a block.
func (r *run) held(hash uint64) bool {
	for _, m := range r.machines {
		if m.member && m.engine.Holds(hash) {
			return true
		}
	}
	return false
}

// setFleet gives every client, and the server, the fleet.
func (r *run) setFleet() {
	var members []router.Member
	for _, m := range r.members() {
		members = append(members, router.Member{Attributes: policy.Attributes{ID: m.id}})
	}
	for _, rt := range r.routers {
		rt.Fleet.Set(members)
		for _, m := range members {
			rt.Fleet.SetConnected(m.ID, true)
		}
	}
	r.share.fleet()
}

// listener receives the changes of a machine's cache; nil = none.
func (r *run) listener(m *machine) enginesim.Listener {
	switch {
	case r.coarse != nil:
		return r.coarse.listener(m)
	case r.exact != nil:
		r.exact.subscribe(m) // and asks when it wants to know
	}
	return nil
}

// nextStep is the machine whose pass ends first, the first of those that end together; nil if all are idle.
func (r *run) nextStep() (at time.Duration, first *machine) {
	at = never
	for _, m := range r.machines {
		if m.due < at {
			at, first = m.due, m
		}
	}
	return at, first
}

// activeKV is each machine's time integral of memory held.
func (r *run) activeKV() []float64 {
	kv := make([]float64, len(r.machines))
	for i, m := range r.machines {
		kv[i] = m.pastKV + m.engine.Stats().ActiveKV
	}
	return kv
}
