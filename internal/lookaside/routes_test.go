package lookaside

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// superblocks returns those of a prompt: its tokens.
type superblocks []uint32

func (superblocks) Hashed() *policy.Hashed { return nil }

func (s superblocks) Superblocks(to []uint64) ([]uint64, int) {
	for _, x := range s {
		to = append(to, uint64(x))
	}
	return to, 1
}

// cutter is a policy that has the superblocks of its prompts.
func cutter() policy.Policy {
	p := (&listener{sizes: map[string]int{}}).policy()
	p.Uses = policy.UsesPrompt
	p.Prepare = func(_ context.Context, q *policy.Request, _ policy.View) error {
		q.Prepared = superblocks(q.Prompt.Tokens)
		return nil
	}
	p.Observer.Routed = func(*policy.Request, policy.Decision) {}
	p.IndexStats = func() (s policy.IndexStats) { return s }
	return p
}

// Routes are reported while the server requests them, each once, and with the server's numbers.
func TestRoutesAreReported(t *testing.T) {
	w, _, _ := unstarted(t)
	r, err := router.NewRouter(router.Options{Policy: cutter()})
	require.NoError(t, err)
	require.True(t, r.Routes.Shares())
	r.Fleet.Set([]router.Member{{Attributes: policy.Attributes{ID: "r2"}}})
	r.Fleet.Connect()
	detach := w.Attach(r)
	wanted, not := true, false
	w.view.take(&warmpathv1.WatchReplicasResponse{Incarnation: "x", Fleet: snapshot(1, 2)}, true)
	send := func(tokens ...uint32) {
		var b router.Reservation
		q := new(policy.Request)
		q.SetPrompt(policy.Prompt{Tokens: tokens})
		require.NoError(t, r.Reserve(context.Background(), q, &b, router.How{NoWait: true}))
		b.PrefillDone()
		b.Release()
	}
	send(1, 2)
	require.Nil(t, w.view.routes.report(w.view.members.named), "it did not ask for them")
	w.view.take(&warmpathv1.WatchReplicasResponse{RoutesWanted: &wanted}, false)
	send(1, 2)
	send(1, 2)
	send()
	send(1, 2, 3)
	got := w.view.routes.report(w.view.members.named).GetRoutes()
	require.Len(t, got, 2)
	require.EqualValues(t, 2, got[0].GetReplica())
	require.Equal(t, []uint64{1, 2}, got[0].GetSuperblocks())
	require.Equal(t, []uint64{1, 2, 3}, got[1].GetSuperblocks())
	require.Nil(t, w.view.routes.report(w.view.members.named))
	send(4)
	require.Nil(t, w.view.routes.report(map[uint32]replica{}).GetRoutes(), "a replica that the server does not name")

	for i := range uint32(2 * router.MaxRoutes) {
		send(i)
	}
	require.Len(t, w.view.routes.report(w.view.members.named).GetRoutes(), router.MaxRoutes)
	send(5)
	w.view.take(&warmpathv1.WatchReplicasResponse{RoutesWanted: &not}, false)
	w.view.take(&warmpathv1.WatchReplicasResponse{RoutesWanted: &wanted}, false)
	require.Nil(t, w.view.routes.report(w.view.members.named))
	detach()
	send(6)
	require.Nil(t, w.view.routes.report(w.view.members.named))
}

// Routes of other clients are passed on as predictions.
func TestRoutedChangesArePredicted(t *testing.T) {
	c := make(caches)
	r, err := replicaOf(named(1)[0])
	require.NoError(t, err)
	got := c.take(&warmpathv1.IndexUpdate{Changes: []*warmpathv1.CacheChange{{Replica: 1, Routed: true, Stored: []uint64{7}}}}, map[uint32]replica{1: r})
	require.Equal(t, []policy.CacheChange{{Replica: "r1", Coarse: true, Predicted: true, Stored: []uint64{7}}}, got)
}
