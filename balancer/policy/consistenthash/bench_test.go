package consistenthash

import (
	"fmt"
	"slices"
	"testing"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/routertest"
)

func build() policy.Policy { return with(Config{}.WithDefaults()).policy() }

func with(c Config) *hashing {
	p, err := newHashing(c)
	if err != nil {
		panic(err)
	}
	return p
}

// order returns the ids of the first n replicas for a key, whether or not they are connected.
func order(p *hashing, key string, n int) (ids []string) {
	ring := p.ring
	for at := ring.after(Hash(key)); len(ids) < min(n, len(p.members)); at = (at + 1) % len(ring) {
		if id := ring[at].owner.id; !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

func TestConform(t *testing.T) { policytest.Conform(t, build) }

func BenchmarkPick(b *testing.B) { policytest.Benchmark(b, build) }

// BenchmarkMembership measures one replica leaving and coming back: two changes
// of the fleet, with all that the Router does for them.
func BenchmarkMembership(b *testing.B) {
	for _, n := range routertest.BenchmarkSizes {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			fleet := policytest.Fleet(n)
			r := policytest.NewRouter(b, build(), fleet)
			b.ReportAllocs()
			for b.Loop() {
				r.Fleet.Set(fleet[1:])
				r.Fleet.Set(fleet)
			}
		})
	}
}
