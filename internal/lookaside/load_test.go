package lookaside

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// sum is the server's state: the last report of one client, and its peer load.
type sum struct {
	mine, peers map[uint32]load
	received    uint64
}

func (s *sum) receive(r *warmpathv1.ReservationReport) {
	if r.GetComplete() {
		clear(s.mine)
	}
	for i, n := range r.GetLoads().GetReplicas() {
		s.mine[n] = load{int64(r.Loads.Ongoing[i]), int64(r.Loads.QueuedTokens[i])}
	}
	s.received = r.GetNumber()
}

func (s *sum) update(numbers []uint32, snapshot bool) *warmpathv1.LoadUpdate {
	u := &warmpathv1.LoadUpdate{Snapshot: snapshot, Counted: s.received, Loads: &warmpathv1.Loads{}}
	for _, n := range numbers {
		u.Loads.Replicas = append(u.Loads.Replicas, n)
		u.Loads.Ongoing = append(u.Loads.Ongoing, uint32(s.mine[n].ongoing+s.peers[n].ongoing))
		u.Loads.QueuedTokens = append(u.Loads.QueuedTokens, uint64(s.mine[n].tokens+s.peers[n].tokens))
	}
	return u
}

// Whatever is under way in either direction, the client's peer load is exact as of the update.
func TestPeerLoadIsExact(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		numbers := []uint32{3, 5, 9}
		s := &sum{mine: map[uint32]load{}, peers: map[uint32]load{}}
		l, own := newLedger(), make([]load, len(numbers))
		var up []*warmpathv1.ReservationReport
		var down []*warmpathv1.LoadUpdate
		var truth [][]load // as of each update that is under way
		for range 100 {
			i := rnd.IntN(len(numbers))
			b := load{rnd.Int64N(4), rnd.Int64N(3000)}
			switch rnd.IntN(6) {
			case 0:
				own[i] = b
			case 1:
				s.peers[numbers[i]] = b
			case 2:
				if r := l.report(numbers, own, rnd.IntN(2) == 0); r != nil {
					up = append(up, r)
				}
			case 3:
				if len(up) > 0 {
					s.receive(up[0])
					up = up[1:]
				}
			case 4:
				down = append(down, s.update(numbers, rnd.IntN(2) == 0))
				now := make([]load, len(numbers))
				for k, n := range numbers {
					now[k] = s.peers[n]
				}
				truth = append(truth, now)
			case 5:
				if len(down) == 0 {
					break
				}
				require.NoError(t, l.take(down[0]))
				require.Equal(t, truth[0], l.peers(numbers), "seed %d", seed)
				down, truth = down[1:], truth[1:]
			}
		}
	}
}

func TestStaleLoadIsTheMean(t *testing.T) {
	l := newLedger()
	loads := &warmpathv1.Loads{Replicas: []uint32{1, 2, 3}, Ongoing: []uint32{2, 4, 900}, QueuedTokens: []uint64{100, 300, 90000}}
	require.NoError(t, l.take(&warmpathv1.LoadUpdate{Loads: loads, Stale: []uint32{3}, StaleSet: true}))
	require.Equal(t, []load{{2, 100}, {4, 300}, {3, 200}}, l.peers([]uint32{1, 2, 3}))
	require.NoError(t, l.take(&warmpathv1.LoadUpdate{}))
	require.Equal(t, []load{{}}, l.peers([]uint32{3}), "stale as before, and no other to go by")
	require.NoError(t, l.take(&warmpathv1.LoadUpdate{StaleSet: true}))
	require.EqualValues(t, 900, l.peers([]uint32{3})[0].ongoing)
}

func TestReportsAreDifferences(t *testing.T) {
	l, numbers := newLedger(), []uint32{1, 2}
	r := l.report(numbers, []load{{1, 10}, {}}, false)
	require.True(t, r.GetComplete())
	require.Equal(t, []uint32{1}, r.GetLoads().GetReplicas())
	require.Nil(t, l.report(numbers, []load{{1, 10}, {}}, false))
	r = l.report(numbers, []load{{1, 10}, {}}, true)
	require.Equal(t, uint64(2), r.GetNumber(), "busy: renewed")
	require.Empty(t, r.GetLoads().GetReplicas())
	r = l.report(numbers, []load{{}, {2, 0}}, false)
	require.Equal(t, []uint32{1, 2}, r.GetLoads().GetReplicas())
	require.Equal(t, []uint32{0, 2}, r.GetLoads().GetOngoing())
	require.NotNil(t, l.report(numbers, []load{{}, {}}, false))
	require.Nil(t, l.report(numbers, []load{{}, {}}, true), "idle: there is nothing to renew")

	for i := range 2 * maxUncounted {
		l.report(numbers, []load{{int64(i + 1), 0}, {}}, false)
	}
	require.Len(t, l.sent, maxUncounted+1)
	require.NoError(t, l.take(&warmpathv1.LoadUpdate{Counted: 1 << 60}))
	require.NotNil(t, l.report(numbers, []load{{7, 7}, {}}, false))
}

func TestColumnsMustBeEqual(t *testing.T) {
	l := newLedger()
	require.ErrorIs(t, l.take(&warmpathv1.LoadUpdate{Loads: &warmpathv1.Loads{Replicas: []uint32{1}}}), errColumns)
	require.Empty(t, l.total)
}
