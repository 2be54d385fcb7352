package kvevents

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// taken is a watcher and what it has passed on, by rank.
type taken struct {
	*watcher
	t    testing.TB
	held map[int]map[uint64]bool
}

func watch(t testing.TB, method string) *taken {
	x := &taken{t: t, held: map[int]map[uint64]bool{}}
	sink := func(changes []policy.CacheChange) {
		for _, c := range changes {
			if x.held[c.Rank] == nil || c.Cleared {
				x.held[c.Rank] = map[uint64]bool{}
			}
			for _, h := range c.Stored {
				x.held[c.Rank][h] = true
			}
		}
	}
	o := Options{Sink: sink}
	x.watcher = newWatcher(&Replica{Options: o.withDefaults(), Attrs: policy.Attributes{ID: "a"}}, method)
	return x
}

func watchSMG(t testing.TB) *taken { return watch(t, "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents") }

// smgStore is a batch of a rank that stores one block, the only one with this number and life.
func smgStore(seq uint64, rank, life int) pb {
	block := pb{}.varint(1, seq+1).bytes(2, packed(uint64(rank), uint64(life), seq)).varint(3, 3)
	return pb{}.varint(1, seq).varint(4, uint64(rank)).bytes(3, pb{}.bytes(2, pb{}.bytes(1, block)))
}

func (x *taken) accept(m pb) {
	x.t.Helper()
	require.NoError(x.t, x.take(x.t.Context(), m))
}

// counts are how many blocks are held, by rank.
func (x *taken) counts() (n [2]int) {
	for rank := range n {
		n[rank] = len(x.held[rank])
	}
	return n
}

// Each rank counts by itself: that their numbers differ is no gap.
func TestRanksHaveTheirOwnNumbers(t *testing.T) {
	x := watchSMG(t)
	for seq := range uint64(3) {
		x.accept(smgStore(seq, 0, 0))
		x.accept(smgStore(seq+40, 1, 0))
	}
	x.subscribed() // the connection blinked, and nothing was missed
	x.accept(smgStore(43, 1, 0))
	x.accept(smgStore(3, 0, 0))
	require.Equal(t, [2]int{4, 4}, x.counts())
	require.Zero(t, x.status.Gaps+x.status.Clears+x.status.Restarts)

	require.Equal(t, errGap, x.take(t.Context(), smgStore(5, 0, 0)))
	require.Equal(t, [2]int{0, 4}, x.counts(), "the other rank has no gap")
	x.subscribed()
	x.accept(smgStore(44, 1, 0))
	x.accept(smgStore(6, 0, 0))
	require.Equal(t, [2]int{1, 5}, x.counts())
	require.Equal(t, []int64{1, 1, 0}, []int64{x.status.Gaps, x.status.Clears, x.status.Restarts})

	x.subscribed() // batches were missed meanwhile: no reason to subscribe again
	x.accept(smgStore(60, 1, 0))
	x.accept(smgStore(7, 0, 0))
	require.Equal(t, [2]int{2, 1}, x.counts())
	require.Equal(t, []int64{1, 2, 0}, []int64{x.status.Gaps, x.status.Clears, x.status.Restarts})

	x.subscribed() // the engine was restarted
	x.accept(smgStore(0, 0, 1))
	require.Equal(t, [2]int{1, 1}, x.counts())
	require.Equal(t, []int64{1, 3, 1}, []int64{x.status.Gaps, x.status.Clears, x.status.Restarts})
}

// SMG's relay puts the engine's load on every batch, and sends the load alone while there are no events.
func TestLoadIsNoEvent(t *testing.T) {
	load := func(m pb, running, only uint64) pb { return m.bytes(8, pb{}.varint(1, running).varint(9, only)) }
	x := watchSMG(t)
	x.accept(load(pb{}, 1, 1)) // before the first batch
	x.accept(load(smgStore(1, 0, 0), 3, 0))
	x.accept(load(smgStore(2, 0, 0), 2, 0))
	for range 5 {
		x.accept(load(pb{}.varint(1, 2).varint(4, 0), 1, 1))
	}
	x.subscribed()
	x.accept(load(pb{}.varint(1, 2).varint(4, 0), 7, 1))
	x.accept(load(smgStore(3, 0, 0), 8, 0))
	x.accept(pb{}.varint(1, 3)) // of a server without load_only
	require.Equal(t, [2]int{3, 0}, x.counts())
	require.Equal(t, int64(3), x.status.Messages)
	require.Empty(t, x.status.Unreadable)
	require.Zero(t, x.status.Gaps+x.status.Clears+x.status.Restarts)
}

// A snapshot takes the place of what was known of its rank, and live events follow its last chunk.
func TestSnapshotsAreApplied(t *testing.T) {
	chunk := func(seq, index uint64, m pb) pb {
		return m.bytes(7, pb{}.varint(1, index).varint(2, 2).varint(3, 2).varint(4, 9))
	}
	cleared := pb{}.varint(1, 20).varint(4, 1).bytes(3, pb{}.bytes(4, nil))
	x := watchSMG(t)
	for range 2 {
		x.accept(smgStore(0, 0, 0))
		for seq := range uint64(5) {
			x.accept(smgStore(seq, 1, 0))
		}
		x.subscribed()
		x.accept(chunk(20, 0, append(cleared, smgStore(20, 1, 0)[4:]...)))
		x.accept(chunk(21, 1, smgStore(21, 1, 0)))
		x.accept(smgStore(22, 1, 0))
		x.accept(smgStore(1, 0, 0))
		require.Equal(t, [2]int{2, 3}, x.counts())
		require.Contains(t, x.status.Problem, "9 batches")
		require.Zero(t, x.status.Gaps)
		require.Equal(t, errGap, x.take(t.Context(), chunk(30, 1, smgStore(30, 1, 0))), "its first chunk did not come")
		x = watchSMG(t)
	}
}

// OpenEngine's streams begin with a snapshot of all ranks, in batches of one number.
func TestOpenEngineBeginsWithASnapshot(t *testing.T) {
	x := watch(t, "/openengine.v1.Control/SubscribeKvEvents")
	store := func(seq, rank uint64, n byte) pb {
		block := pb{}.bytes(1, pb{}.bytes(1, []byte{n})).bytes(3, packed(uint64(n))).varint(4, 1)
		return pb{}.varint(1, seq).varint(3, rank).bytes(4, pb{}.bytes(10, block))
	}
	require.Equal(t, pb{}.varint(2, 1), pb(x.request))
	x.snapshot = true
	for n := range byte(3) {
		x.accept(store(7, uint64(n%2), n+1))
	}
	x.accept(store(8, 0, 4))
	x.accept(store(9, 1, 5))
	x.accept(store(10, 0, 6))
	require.Equal(t, [2]int{4, 2}, x.counts())
	require.Equal(t, errGap, x.take(t.Context(), store(9, 0, 7)))
	require.Equal(t, [2]int{0, 2}, x.counts())
}

// Whatever is lost, and whenever an engine restarts, what is known of a rank is a part of what its engine stored, and
// all of it if the server begins with all events.
func TestSubscriptionsProperty(t *testing.T) {
	for seed := range uint64(80) {
		rng := rand.New(rand.NewPCG(seed, 3))
		x, all, history := watchSMG(t), watchSMG(t), seed%2 == 0
		var published [2][]pb
		publish := func(rank, life int) {
			m := smgStore(uint64(len(published[rank])), rank, life)
			published[rank] = append(published[rank], m)
			all.accept(m)
		}
		var sent [2]int
		life := 0
		resubscribe := func() {
			x.subscribed()
			for rank := range sent {
				if sent[rank] = len(published[rank]); history {
					sent[rank] = 0
				}
			}
		}
		pump := func() {
			for rank := 0; rank < len(sent); rank++ {
				for sent[rank] < len(published[rank]) {
					sent[rank]++
					if x.take(t.Context(), published[rank][sent[rank]-1]) == errGap {
						resubscribe()
						rank = -1
						break
					}
				}
			}
		}
		for range 200 {
			for rank := range published {
				if rng.IntN(2) == 0 {
					publish(rank, life)
				}
			}
			switch rng.IntN(30) {
			case 0:
				pump()
				life++
				published, all = [2][]pb{}, watchSMG(t)
				resubscribe()
				publish(0, life) // at once: else its numbers may continue those before
				publish(1, life)
				pump()
			case 1:
				resubscribe()
			case 2:
				if rank := rng.IntN(2); sent[rank] > 0 {
					sent[rank] = min(sent[rank]+1, len(published[rank])) // it gets lost
				}
			}
			pump()
			for rank := range published {
				c := x.cursors[rank]
				if c == nil || !c.came {
					continue
				}
				for h := range x.held[rank] {
					require.True(t, all.held[rank][h], "seed %d: its engine does not hold it", seed)
				}
				if history && c.next == uint64(len(published[rank])) {
					require.Len(t, x.held[rank], len(all.held[rank]), "seed %d", seed)
				}
			}
		}
	}
}
