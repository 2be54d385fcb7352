package lookaside

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	routerload "github.com/warmpath/warmpath/internal/router/load"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

func TestReservedIsNotReported(t *testing.T) {
	w, _, r := unstarted(t)
	w.view.take(greeting(), true)
	r.Fleet.Connect()
	var own, theirs router.Reservation
	reserve := func(b *router.Reservation) {
		a := &router.Assigned{Replica: "r2", Decision: policy.Decision{Reason: policy.ReasonCentral}}
		require.NoError(t, r.Reserve(t.Context(), &policy.Request{PromptTokens: 100}, b, router.How{Assigned: a}))
	}
	reserve(&own)
	reserve(&theirs)
	now := time.Now()
	x := w.central.reserve(&warmpathv1.Reservation{Id: "#1", LeaseMs: 3000}, "r2", "r2", 100, now)
	require.Equal(t, []load{{}, {1, 100}}, w.view.ownLoad([]uint32{1, 2}))

	theirs.PrefillDone()
	x.Prefilled()
	require.Equal(t, []load{{}, {1, 100}}, w.view.ownLoad([]uint32{1, 2}))

	// The peer load has the server's reservation for this client in it.
	before := peersOf(r)["r2"]
	w.view.load.damping = routerload.Damping{}
	again := greeting().Load
	again.Counted = 1
	w.view.take(&warmpathv1.WatchReplicasResponse{Load: again}, false)
	require.Equal(t, before-1, peersOf(r)["r2"])

	// Another server has none: from here on it is own load.
	w.view.begin("another", now)
	require.Equal(t, []load{{}, {2, 100}}, renumbered(w))
	theirs.Release()
	x.Released(nil)
	require.Equal(t, []load{{}, {1, 100}}, renumbered(w))
	require.Empty(t, w.central.reports, "and it is sent no report of it")
	own.Release()
}

// renumbered is the own load for a server that has numbered the replicas as the one before.
func renumbered(w *Watch) []load {
	w.view.members.take(greeting().Fleet)
	return w.view.ownLoad([]uint32{1, 2})
}

func stages(all []*warmpathv1.LifeReport) (got []string) {
	for _, r := range all {
		got = append(got, fmt.Sprint(r.GetReservation(), " ", r.GetStage(), " ", r.GetOutcome().GetCode()))
	}
	return got
}

func TestReservationIsReported(t *testing.T) {
	d := newCentral("chat")
	d.begin(stub{})
	sent := func() (all []string) {
		for _, m := range d.outgoing(stub{}) {
			all = append(all, stages(m.GetLives())...)
		}
		return all
	}
	now := time.Now()
	add := func(id string) *Reservation {
		return d.reserve(&warmpathv1.Reservation{Id: id, LeaseMs: 15_000}, "r", "r", 10, now)
	}
	a, b := add("a"), add("b")
	a.Prefilled()
	a.Prefilled()
	a.Released(&policy.Outcome{Err: errors.New("broken"), Sent: true, Usage: policy.NoUsage})
	a.Released(nil)
	a.Prefilled()
	require.Equal(t, []string{"a LIFE_STAGE_PREFILL_COMPLETE 0", "a LIFE_STAGE_RELEASED 2"}, sent())
	require.Equal(t, load{1, 10}, d.reserved()["r"])

	d.renew(now.Add(4 * time.Second))
	require.Empty(t, sent())
	d.renew(now.Add(6 * time.Second))
	require.Equal(t, []string{"b LIFE_STAGE_PROGRESS 0"}, sent(), "a long stream keeps its lease")
	d.renew(now.Add(time.Minute))
	require.Empty(t, sent(), "its lease is over there")
	require.Zero(t, d.reserved()["r"])
	b.Released(nil)
	require.Empty(t, sent())

	c := add("c") // the server cannot be reached: leases are looked at when the next stream begins
	require.Equal(t, load{1, 10}, d.reserved()["r"])
	d.renew(now.Add(15 * time.Second))
	require.Zero(t, d.reserved()["r"])
	require.Empty(t, sent())
	c.Released(nil)

	d.giveBack(&warmpathv1.Reservation{Id: "late", LeaseMs: 1})
	d.giveBack(nil)
	require.Equal(t, []string{"late LIFE_STAGE_RELEASED 0"}, sent())
	require.Empty(t, d.reserved())
	for i := range 2 * maxReports {
		d.giveBack(&warmpathv1.Reservation{Id: fmt.Sprint(i)})
	}
	require.Len(t, sent(), maxReports)
	require.Empty(t, d.live)
}

// A Router's reservations are reported until their calls end, and count for the Router that replaces it.
func TestReservationsOfAReplacedRouter(t *testing.T) {
	w, _, r := unstarted(t)
	w.view.take(greeting(), true)
	r.Fleet.Connect()
	var held router.Reservation
	a := &router.Assigned{Replica: "r2", Decision: policy.Decision{Reason: policy.ReasonCentral}}
	require.NoError(t, r.Reserve(t.Context(), &policy.Request{PromptTokens: 100}, &held, router.How{Assigned: a}))
	require.Equal(t, []uint32{2}, w.view.report(false).GetReservations().GetLoads().GetReplicas())

	w.view.detach(r)
	_, next := newListener(t)
	setFleet(next, State{Replicas: w.view.members.all()})
	defer w.Attach(next)()
	require.Nil(t, w.view.report(false).GetReservations(), "nothing has changed")
	again := greeting().Load
	again.Counted, again.Loads.Ongoing[1] = 1, 33
	w.view.load.damping = routerload.Damping{}
	w.view.take(&warmpathv1.WatchReplicasResponse{Load: again}, false)
	require.Equal(t, map[string]int{"r1": 8, "r2": 33}, peersOf(next), "32 of peers and its own")

	held.Release()
	require.Equal(t, []uint32{0}, w.view.report(false).GetReservations().GetLoads().GetOngoing())
	require.Empty(t, w.view.retired)
}
