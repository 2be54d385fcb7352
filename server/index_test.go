package server

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

type heldBy struct {
	replica, rank uint32
	tier          warmpathv1.CacheTier
}

// caches are those that a client has received.
type caches map[heldBy]map[uint64]bool

func (c caches) apply(updates []*warmpathv1.IndexUpdate) (version uint64) {
	for _, u := range updates {
		if u.GetSnapshot() {
			clear(c)
		}
		for _, x := range u.GetChanges() {
			k := heldBy{x.GetReplica(), x.GetRank(), x.GetTier()}
			if c[k] == nil || x.GetCleared() {
				c[k] = make(map[uint64]bool)
			}
			for _, h := range x.GetRemoved() {
				delete(c[k], h)
			}
			for _, h := range x.GetStored() {
				c[k][h] = true
			}
		}
		version = u.GetVersion()
	}
	return version
}

// held lists the lanes of a replica.
func (x *index) held(id string) (all []laneKey) {
	for k := range x.lanes {
		if k.replica == id {
			all = append(all, k)
		}
	}
	return all
}

// known omits what holds nothing, and replicas that have left.
func (c caches) known(member func(uint32) bool) caches {
	all := maps.Clone(c)
	maps.DeleteFunc(all, func(k heldBy, held map[uint64]bool) bool { return len(held) == 0 || !member(k.replica) })
	return all
}

// A client that applies the updates has what is held, from any version on, whichever replicas leave, join or are
// cleared.
func TestIndexBroadcastsWhatIsHeld(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	x := newIndex(0)
	truth := make(map[string]caches) // by id, under the number 0
	numbers := map[string]uint32{"a": 1, "b": 2}
	last := uint32(2)
	number := func(id string) uint32 { return numbers[id] }
	member := func(n uint32) bool {
		for _, m := range numbers {
			if m == n {
				return true
			}
		}
		return false
	}
	type client struct {
		caches
		version uint64
	}
	clients := make([]client, 4)
	for i := range clients {
		clients[i].caches = make(caches)
	}
	for range 4000 {
		id := string(rune('a' + rng.IntN(3)))
		c := policy.CacheChange{
			Replica: id, Rank: rng.IntN(2), Tier: policy.Tier(rng.IntN(2)), BlockTokens: 16, Coarse: true, Cleared: rng.IntN(50) == 0,
		}
		for range rng.IntN(3) {
			c.Removed = append(c.Removed, rng.Uint64N(8))
		}
		for range rng.IntN(3) {
			c.Stored = append(c.Stored, rng.Uint64N(8))
		}
		x.take([]policy.CacheChange{c, {Replica: id, BlockTokens: 16, Stored: []uint64{99}}})
		if truth[id] == nil {
			truth[id] = make(caches)
		}
		truth[id].apply([]*warmpathv1.IndexUpdate{{Changes: []*warmpathv1.CacheChange{{
			Rank: uint32(c.Rank), Tier: warmpathv1.CacheTier(c.Tier) + 1, Cleared: c.Cleared, Removed: c.Removed, Stored: c.Stored,
		}}}})
		if rng.IntN(40) == 0 { // a replica leaves, or comes back under another number after an interval
			if numbers[id] != 0 {
				delete(numbers, id)
			} else {
				x.flush(number)
				require.Empty(t, x.held(id))
				last++
				numbers[id] = last
				delete(truth, id)
			}
		}
		k := &clients[rng.IntN(len(clients))]
		switch rng.IntN(4) {
		case 0:
			x.flush(number)
		case 1:
			if rng.IntN(20) == 0 {
				*k = client{caches: make(caches)}
			}
			if updates := x.since(k.version, number); updates != nil {
				k.version = k.apply(updates)
			}
		case 2: // all is sent now
			x.flush(number)
			if updates := x.since(k.version, number); updates != nil {
				k.version = k.apply(updates)
			}
			want := make(caches)
			for id, held := range truth {
				if n := numbers[id]; n != 0 {
					for at, hashes := range held {
						if at.replica = n; len(hashes) > 0 {
							want[at] = hashes
						}
					}
				}
			}
			require.Equal(t, want, k.known(member))
		}
	}
}

// Chains stay chains, in a snapshot and in changes; a repeated addition or removal is no change.
func TestIndexChains(t *testing.T) {
	x := newIndex(6)
	one := func(string) uint32 { return 1 }
	super := func(removed []uint64, stored ...uint64) {
		x.take([]policy.CacheChange{{Replica: "a", BlockTokens: 16, Coarse: true, Removed: removed, Stored: stored}})
	}
	first := x.since(3, one)
	require.Len(t, first, 1)
	require.True(t, first[0].GetSnapshot())
	require.EqualValues(t, 7, first[0].GetVersion())
	super(nil, 30, 20, 10)
	super(nil, 5, 4)
	super([]uint64{20})
	x.flush(one)
	changes := x.since(7, one)[0].GetChanges()
	require.Len(t, changes, 2)
	require.True(t, changes[0].GetCleared(), "the first change of a replica")
	require.Equal(t, []uint64{30, 10}, changes[0].GetStored())
	require.Equal(t, []uint64{5, 4}, changes[1].GetStored())
	require.Equal(t, warmpathv1.CacheTier_CACHE_TIER_GPU, changes[1].GetTier())
	super([]uint64{77}, 5, 4)
	x.flush(one)
	require.Nil(t, x.since(8, one))
}

// A snapshot between two intervals has no change that is taken back before the next version.
func TestIndexSnapshotBetween(t *testing.T) {
	one := func(string) uint32 { return 1 }
	a := heldBy{1, 0, warmpathv1.CacheTier_CACHE_TIER_GPU}
	change := func(x *index, removed, stored []uint64) {
		x.take([]policy.CacheChange{{Replica: "a", BlockTokens: 16, Coarse: true, Removed: removed, Stored: stored}})
	}
	x := newIndex(0)
	change(x, nil, []uint64{1})
	x.flush(one)
	change(x, []uint64{1}, []uint64{2})
	known := make(caches)
	version := known.apply(x.since(0, one))
	change(x, []uint64{2}, []uint64{1})
	x.flush(one)
	known.apply(x.since(version, one))
	require.Equal(t, map[uint64]bool{1: true}, known[a])
}

// The log is bounded. A client that comes back too late is sent a snapshot, in messages of bounded size.
func TestIndexIsBounded(t *testing.T) {
	x := newIndex(0)
	one := func(string) uint32 { return 1 }
	hashes := make([]uint64, 1000)
	known := make(caches)
	version := known.apply(x.since(0, one))
	for i := range 200 {
		for j := range hashes {
			hashes[j] = uint64(i*len(hashes) + j)
		}
		x.take([]policy.CacheChange{{Replica: "a", BlockTokens: 16, Coarse: true, Stored: hashes}})
		x.flush(one)
		require.LessOrEqual(t, x.logged, maxLogged)
	}
	require.Less(t, len(x.log), 200)
	all := x.since(version, one)
	require.True(t, all[0].GetSnapshot())
	require.Greater(t, len(all), 5)
	for _, u := range all {
		n := 0
		for _, c := range u.GetChanges() {
			n += len(c.GetStored())
		}
		require.Less(t, n, maxChunk+len(hashes)+1)
	}
	require.Equal(t, x.version, known.apply(all))
	require.Len(t, known[heldBy{1, 0, warmpathv1.CacheTier_CACHE_TIER_GPU}], 200_000)
}
