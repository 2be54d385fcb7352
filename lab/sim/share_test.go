package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
)

// pinned reserves a prompt on a replica.
func pinned(t *testing.T, r *router.Router, id string, tokens int) *router.Reservation {
	t.Helper()
	b := new(router.Reservation)
	require.NoError(t, r.Reserve(t.Context(), &policy.Request{Pin: id, PromptTokens: tokens}, b, router.How{NoWait: true}))
	return b
}

func TestSharing(t *testing.T) {
	p, err := newPolicy(t)
	require.NoError(t, err)
	a, b := policytest.NewRouter(t, p, policytest.Fleet(2)), policytest.NewRouter(t, p, policytest.Fleet(2))
	first, second := a.View().Replicas()[0].ID, a.View().Replicas()[1].ID
	peerLoad := func(r *router.Router, id string) [2]int {
		n, tokens := r.View().ByID(id).PeerLoad()
		return [2]int{n, int(tokens)}
	}
	s := newSharing([]*router.Router{a, b}, 1, 100*time.Millisecond, nil)
	one := pinned(t, a, first, 1000)
	pinned(t, b, second, 50)

	require.Equal(t, 95*time.Millisecond, s.next)
	s.tick() // a reports
	require.Equal(t, 100*time.Millisecond, s.next)
	require.Equal(t, [2]int{0, 0}, peerLoad(b, first), "not sent yet")
	s.tick() // b reports, and the server sends to both
	require.Equal(t, 195*time.Millisecond, s.next)
	require.Equal(t, [2]int{1, 1000}, peerLoad(b, first))
	require.Equal(t, [2]int{1, 50}, peerLoad(a, second))
	require.Equal(t, [2]int{0, 0}, peerLoad(a, first), "a client's own report is subtracted")
	require.Equal(t, [2]int{0, 0}, peerLoad(b, second))

	one.PrefillDone()
	pinned(t, a, first, 7)
	require.InDelta(t, 2*policy.RequestCost+7, a.View().Load(a.View().ByID(first)), 1e-9, "own reservations count at once")
	s.tick()
	s.tick()
	require.Equal(t, [2]int{1, 5}, peerLoad(b, first), "two thirds of the load lasted: 4/9 of what is beyond the mean of 1 and 3.5 is kept")
	require.Equal(t, 295*time.Millisecond, s.next)
}

func TestNothingShared(t *testing.T) {
	require.Equal(t, never, (*sharing)(nil).due())
}

// A client of another server sees a client's load one interval later than those of its own server.
func TestSharingOfServers(t *testing.T) {
	routers := make([]*router.Router, 3)
	for i := range routers {
		p, err := newPolicy(t)
		require.NoError(t, err)
		routers[i] = policytest.NewRouter(t, p, policytest.Fleet(2))
	}
	first := routers[0].View().Replicas()[0].ID
	s := newSharing(routers, 2, 100*time.Millisecond, nil)
	pinned(t, routers[0], first, 1000)
	seen := func(i int) int {
		n, _ := routers[i].View().ByID(first).PeerLoad()
		return n
	}
	for range 3 {
		s.tick()
	}
	require.Equal(t, 1, seen(2), "of the same server")
	require.Equal(t, 0, seen(1), "of the other one")
	for range 3 {
		s.tick()
	}
	require.Equal(t, 1, seen(1))
	require.Equal(t, 0, seen(0))
}
