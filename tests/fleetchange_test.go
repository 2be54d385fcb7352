package tests

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/router"
)

// allocated returns how many bytes and objects a function allocates.
func allocated(do func()) (bytes, objects uint64) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, after.Mallocs - before.Mallocs
}

// Issue 12.4: the work of a policy and the Router for each replica of a new fleet does not grow with the fleet.
func TestFleetIsLinear(t *testing.T) {
	for _, name := range builtinPolicies {
		t.Run(name, func(t *testing.T) {
			each := func(n int) uint64 {
				p, err := policy.New(name, nil)
				require.NoError(t, err)
				r := policytest.NewRouter(t, p, nil)
				fleet := policytest.Fleet(n)
				bytes, _ := allocated(func() {
					r.Fleet.Set(fleet)
					r.Fleet.Connect()
				})
				require.Len(t, r.View().Connected(), n)
				return bytes / uint64(n)
			}
			each(100) // what is allocated once
			few, many := each(500), each(5000)
			require.Less(t, many, 2*few, "bytes for each replica")
		})
	}
}

// builtinPolicies are the names of the built-in policies.
var builtinPolicies = []string{"consistent_hash", "kv_aware", "power_of_two_choices", "prefix_cache_affinity", "round_robin"}

// Issue 12.40: the work for one connection that breaks and is opened again, and for the picks after each, does not
// grow with the fleet. This holds for eager connections and for connections on demand.
func TestConnectionChangeIsConstant(t *testing.T) {
	for name, sizes := range map[string][2]int{"whole": {50, 1000}, "by picks": {1001, 5000}} {
		t.Run(name, func(t *testing.T) {
			objects := func(n int) uint64 {
				f := newWideFleet(t, "kv_aware", n)
				f.connect(t)
				const changes = 20
				_, all := allocated(func() {
					for i := range changes {
						f.open[i].lose()
						f.touch(t, i)
					}
				})
				return all / changes
			}
			few, many := objects(sizes[0]), objects(sizes[1])
			require.LessOrEqual(t, many, few+few/2, "objects allocated for a change")
		})
	}
}

// observing is a policy that records its notifications.
type observing struct {
	policy.Policy
	mu   sync.Mutex
	seen []string
}

func (p *observing) fleetChanged(c policy.FleetChange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for what, list := range map[string][]*policy.Replica{
		"added": c.Added, "removed": c.Removed, "connected": c.Connected, "disconnected": c.Disconnected,
	} {
		for _, r := range list {
			p.seen = append(p.seen, fmt.Sprintf("%s %s %t", what, r.ID, r.Connected()))
		}
	}
}

// take returns the notifications since the last call.
func (p *observing) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := p.seen
	p.seen = nil
	return seen
}

func newObserving(t *testing.T) *observing {
	t.Helper()
	p, err := policy.New("round_robin", nil)
	require.NoError(t, err)
	o := &observing{Policy: p}
	o.Observer.FleetChanged = o.fleetChanged
	return o
}

// Issue 12.23: a policy is notified only of the one replica whose connection breaks and returns.
func TestPolicyObservesConnections(t *testing.T) {
	p := newObserving(t)
	name := unique("observing_connections")
	policy.Register(name, func(struct{}) (policy.Policy, error) { return p.Policy, nil })
	rs := replicas(t, 3)
	cc := dial(t, target(rs...), client.WithConfig(config(`{"`+name+`":{}}`)))
	connected(t, cc, rs)
	var all []string
	eventually(t, "three connections", func() bool {
		all = append(all, p.take()...)
		return len(all) == 6
	})
	for _, r := range rs {
		require.Contains(t, all, "added "+r.addr+" false")
		require.Contains(t, all, "connected "+r.addr+" true")
	}

	rs[1].server.Stop()
	var seen []string
	eventually(t, "the death", func() bool {
		seen = append(seen, p.take()...)
		return len(seen) > 0
	})
	revive(t, rs[1])
	eventually(t, "the return", func() bool {
		seen = append(seen, p.take()...)
		return len(seen) > 1
	})
	require.Equal(t, []string{"disconnected " + rs[1].addr + " false", "connected " + rs[1].addr + " true"}, seen)
}

// Issue 12.23: the policy in force and its shadow are each notified once of each change, with the replicas that
// changed.
func TestPolicyObservesFleet(t *testing.T) {
	force, shadow := newObserving(t), newObserving(t)
	r := policytest.NewRouter(t, force.Policy, nil, func(o *router.Options) { o.Shadow = shadow.Policy })
	expect := func(want ...string) {
		t.Helper()
		require.ElementsMatch(t, want, force.take())
		require.ElementsMatch(t, want, shadow.take())
	}
	fleet := policytest.Replicas("a", "b", "c")
	r.Fleet.Set(fleet)
	expect("added a false", "added b false", "added c false")
	r.Fleet.Connect()
	expect("connected a true", "connected b true", "connected c true")
	r.Fleet.Connect()
	r.Fleet.SetConnected("b", true)
	r.Fleet.SetConnected("d", true)
	expect()
	r.Fleet.SetConnected("b", false)
	expect("disconnected b false")
	r.Fleet.Set(fleet[:2])
	expect("removed c false")
	fleet[0].Instance = "1"
	r.Fleet.Set(fleet[:2])
	expect()
	fleet[0].Instance = "2"
	r.Fleet.Set(fleet[:2])
	expect("added a true", "removed a true")
	r.Fleet.Disconnect()
	expect("disconnected a false")
}
