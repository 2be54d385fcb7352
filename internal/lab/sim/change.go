package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/lab/enginesim"
	"github.com/warmpath/warmpath/internal/lab/sim/baseline"
)

// RestartTakes is how long an engine that restarts is away after its last request has ended.
const RestartTakes = 30 * time.Second

// Change is something that happens to the fleet during a run.
type Change struct {
	// At is when, since the start of the workload.
	At time.Duration
	// Delta is how many engines join, empty, or leave, the last ones first. 0 is a rolling restart: each engine in
	// turn leaves and comes back empty, RestartTakes after its requests have ended; then the next one leaves.
	Delta int
}

// restart is how a rolling restart is written.
const restart = "restart"

// ParseChange reads AT:+N, AT:-N or AT:restart, with AT as in 10m or 90s.
func ParseChange(s string) (Change, error) {
	at, what, ok := strings.Cut(s, ":")
	if !ok {
		return Change{}, fmt.Errorf("%q is not TIME:+N, TIME:-N or TIME:%s", s, restart)
	}
	t, err := time.ParseDuration(at)
	if err != nil || t < 0 {
		return Change{}, fmt.Errorf("%q: %q is not a time since the start, as 10m", s, at)
	}
	if what == restart {
		return Change{At: t}, nil
	}
	n, err := strconv.Atoi(what)
	if err != nil || n == 0 || n > maxMachines || n < -maxMachines || what[0] != '+' && what[0] != '-' {
		return Change{}, fmt.Errorf("%q: %q is neither +N, -N nor %s", s, what, restart)
	}
	return Change{At: t, Delta: n}, nil
}

// String is what ParseChange reads.
func (c Change) String() string {
	if c.Delta == 0 {
		return fmt.Sprintf("%v:%s", c.At, restart)
	}
	return fmt.Sprintf("%v:%+d", c.At, c.Delta)
}

// checkChanges checks that the fleet is never empty, and that the policy can have replicas that join.
func (c *Config) checkChanges() error {
	if len(c.Changes) == 0 {
		return nil
	}
	if baseline.StaticFleet(c.name()) {
		return fmt.Errorf("sim: fleet changes: the baseline %s is written for a fleet that stays as it is", c.name())
	}
	c.Changes = slices.Clone(c.Changes)
	slices.SortStableFunc(c.Changes, func(a, b Change) int { return int(a.At - b.At) })
	n := c.Replicas
	for _, ch := range c.Changes {
		n += ch.Delta
		switch {
		case n < 1 || n > maxMachines:
			return fmt.Errorf("sim: fleet changes: %v leaves %d replicas", ch, n)
		case n == 1 && ch.Delta == 0:
			return fmt.Errorf("sim: fleet changes: %v of the only replica leaves none", ch)
		case ch.At < 0:
			return fmt.Errorf("sim: fleet changes: %v is before the start", ch)
		}
	}
	return nil
}

// turnover is what is still to happen to the fleet.
type turnover struct {
	planned []Change
	rolling []*machine    // yet to restart; the first one is away
	back    time.Duration // when it comes back; never while it still has requests
	twin    bool          // nothing happens, but for the ledger
}

// next is when something happens next.
func (t *turnover) next() time.Duration {
	at := never
	if len(t.planned) > 0 {
		at = t.planned[0].At
	}
	if len(t.rolling) > 0 {
		at = min(at, t.back)
	}
	return at
}

// change does what is due.
func (r *run) change() error {
	t := &r.turnover
	if len(t.rolling) > 0 && t.back <= r.now {
		if err := r.restarted(t.rolling[0]); err != nil {
			return err
		}
		t.rolling = t.rolling[1:]
		r.restartNext()
		return nil
	}
	c := t.planned[0]
	t.planned = t.planned[1:]
	if r.ledger == nil {
		r.ledger = newLedger(r.machines)
	}
	switch {
	case t.twin:
		return nil
	case c.Delta == 0:
		idle := len(t.rolling) == 0
		t.rolling = append(t.rolling, r.members()...)
		if idle {
			r.restartNext()
		}
		return nil
	case c.Delta < 0:
		members := r.members()
		for _, m := range members[len(members)+c.Delta:] {
			r.leave(m)
		}
	}
	for range max(c.Delta, 0) {
		if err := r.newMachine(len(r.machines)); err != nil {
			return err
		}
	}
	r.setFleet()
	return nil
}

// restartNext sends away the next one of a rolling restart that has not left since for good.
func (r *run) restartNext() {
	t := &r.turnover
	t.back = never
	for len(t.rolling) > 0 && !t.rolling[0].member {
		t.rolling = t.rolling[1:]
	}
	if len(t.rolling) > 0 {
		r.leave(t.rolling[0])
		r.drained(t.rolling[0])
	}
	r.setFleet()
}

// drained lets a machine go down that is away and has nothing more to do.
func (r *run) drained(m *machine) {
	t := &r.turnover
	if len(t.rolling) > 0 && t.rolling[0] == m && m.due == never {
		t.back = r.now + RestartTakes
	}
}

// leave takes a machine out of the fleet; its requests go on. The caller updates the clients.
func (r *run) leave(m *machine) {
	m.member = false
	if r.coarse != nil {
		r.coarse.forget(m)
	}
	if r.exact != nil {
		r.exact.forget(m)
	}
}

// restarted puts a machine back with an empty cache.
func (r *run) restarted(m *machine) error {
	cfg := m.engine.Config()
	cfg.Listener = r.listener(m)
	e, err := enginesim.New(cfg)
	if err != nil {
		return err
	}
	m.pastKV += m.engine.Stats().ActiveKV
	m.engine, m.member = e, true
	return nil
}

// members are the machines in the fleet.
func (r *run) members() []*machine {
	return slices.DeleteFunc(slices.Clone(r.machines), func(m *machine) bool { return !m.member })
}
