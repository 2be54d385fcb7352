package kvaware

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/rendezvous"
	"github.com/warmpath/warmpath/internal/router"
)

// Clients that share nothing and have seen no request send the same prompt to the same replica.
func TestNewClientsAgree(t *testing.T) {
	for i := range 20 {
		want := route(t, newRouter(t, 16), ask(tokens(i, 500))).Replica.ID
		for range 7 {
			require.Equal(t, want, route(t, newRouter(t, 16), ask(tokens(i, 500))).Replica.ID)
		}
	}
}

// The system prompt alone is never a match once enough requests have it; a real conversation is, however long the
// system prompt before it.
func TestWhatIsSharedDoesNotDecide(t *testing.T) {
	r := newRouter(t, 16)
	system := tokens(0, 20_000)
	for i := range 200 {
		d := route(t, r, ask(system, tokens(100+i, 100)))
		if i > rendezvous.Few {
			require.NotEqual(t, policy.ReasonPrefixMatch, d.Reason, "request %d", i)
		}
		next := route(t, r, ask(system, tokens(100+i, 100), tokens(1000+i, 100)))
		require.Equal(t, policy.ReasonPrefixMatch, next.Reason)
		require.GreaterOrEqual(t, next.MatchedTokens, 20_096-16, "shared blocks are cached too")
		if i > rendezvous.Few {
			require.Equal(t, d.Replica.ID, next.Replica.ID)
		}
	}
}

// A client with one endless conversation.
func TestOneConversation(t *testing.T) {
	r := newRouter(t, 16)
	conversation := tokens(0, 500)
	home := route(t, r, ask(conversation)).Replica.ID
	for i := range 300 {
		conversation = append(conversation, tokens(1+i, 40)...)
		d := route(t, r, ask(conversation))
		require.Equal(t, policy.ReasonPrefixMatch, d.Reason, "turn %d", i)
		require.Equal(t, home, d.Replica.ID)
	}
}

// Short questions after a long instruction do not all go to one replica.
func TestShortQuestionsSpread(t *testing.T) {
	r := newRouter(t, 16)
	system := tokens(0, 1024)
	count := map[string]int{}
	for i := range 400 {
		count[route(t, r, ask(system, tokens(1+i, 7))).Replica.ID]++
	}
	for id, n := range count {
		require.Less(t, n, 60, id)
	}
	require.Len(t, count, 16)
}

// A burst of identical requests fans out in step with the load, and a later one finds its prompt cached.
func TestHotPrefixFansOutAndComesBack(t *testing.T) {
	r := newRouter(t, 16)
	hot := func() *policy.Request { return ask(tokens(1, 3000)) }
	for range 40 { // until the key is stable
		route(t, r, hot())
	}
	var held []*router.Reservation
	used := map[string]int{}
	for i := range 100 {
		b := policytest.Pick(t, r, hot())
		b.PrefillDone()
		held = append(held, b)
		used[b.Decision.Replica.ID]++
		if i < 8 {
			require.Len(t, used, 1, "one replica can bear 8")
		}
		require.GreaterOrEqual(t, len(used), i/30, "in step with the load")
		require.LessOrEqual(t, len(used), 2+i/8, "in step with the load")
	}
	for _, b := range held {
		b.Release()
	}
	home := route(t, r, hot())
	require.Positive(t, used[home.Replica.ID])
	require.Equal(t, 3000, home.MatchedTokens)
	for range 20 {
		require.Equal(t, home.Replica.ID, route(t, r, hot()).Replica.ID)
	}
}

// A queued request chooses with what was prepared for the fleet of that time.
func TestReplicaThatLeftIsNeverChosen(t *testing.T) {
	for _, n := range []int{4, 30, 100} {
		r := newRouter(t, n)
		route(t, r, ask(tokens(1, 800)))
		q := ask(tokens(1, 900))
		r.Prepare(t.Context(), q)
		fleet := policytest.Fleet(n)
		for len(fleet) > 1 {
			d := r.Policy().Choose(q, r.View())
			require.NotNil(t, d.Replica)
			require.Same(t, r.View().ByID(d.Replica.ID), d.Replica)
			for i := range fleet {
				if fleet[i].ID == d.Replica.ID {
					fleet = append(fleet[:i:i], fleet[i+1:]...)
					break
				}
			}
			policytest.SetFleet(r, fleet)
		}
	}
}

// A replica that comes back under its id has an empty cache.
func TestReplicaThatComesBackHoldsNothing(t *testing.T) {
	r := newRouter(t, 8)
	id := route(t, r, ask(tokens(1, 800))).Replica.ID
	policytest.SetFleet(r, nil)
	policytest.SetFleet(r, policytest.Fleet(8))
	d := route(t, r, ask(tokens(1, 800)))
	require.Equal(t, id, d.Replica.ID)
	require.NotEqual(t, policy.ReasonPrefixMatch, d.Reason)
	require.Zero(t, d.MatchedTokens)
}
