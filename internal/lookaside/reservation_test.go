package lookaside

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

func TestPace(t *testing.T) {
	const longest = 20 * time.Millisecond
	var p pace
	require.Equal(t, longest, p.limit(longest), "nothing is known")
	for range 100 {
		p.took(time.Millisecond)
	}
	require.Equal(t, longest/2, p.limit(longest), "a fast server is waited for less long")
	p.late = 1
	require.Equal(t, longest, p.limit(longest))
	p.late = 100
	require.Equal(t, longest, p.limit(longest))
	p.late = 0
	for range 100 {
		p.took(14 * time.Millisecond)
	}
	require.InDelta(t, float64(14*time.Millisecond), float64(p.limit(longest)), float64(time.Millisecond), "a slow one longer")
	p.took(time.Second)
	require.Equal(t, longest, p.limit(longest), "never longer than was asked for")
}

func TestReservedIsNotReported(t *testing.T) {
	w, _, r := unstarted(t)
	w.view.take(greeting(), true)
	r.Connect()
	var own, theirs router.Reservation
	honour := func(b *router.Reservation) {
		q := &policy.Request{PromptTokens: 100}
		require.NoError(t, r.Honour(q, "r2", policy.Decision{Reason: policy.ReasonCentral}, b))
	}
	honour(&own)
	honour(&theirs)
	now := time.Now()
	x := w.desk.reserved.add(&warmpathv1.Reservation{Id: "#1", LeaseMs: 3000}, "r2", 100, now)
	require.Equal(t, []load{{}, {1, 100}}, w.view.ownLoad([]uint32{1, 2}))

	theirs.PrefillDone()
	x.Prefilled()
	require.Equal(t, []load{{}, {1, 100}}, w.view.ownLoad([]uint32{1, 2}))

	// The peer load has the server's reservation for this client in it.
	before := foreign(r)["r2"]
	w.view.load.damping = router.Damping{}
	again := greeting().Load
	again.Counted = 1
	w.view.take(&warmpathv1.WatchReplicasResponse{Load: again}, false)
	require.Equal(t, before-1, foreign(r)["r2"])

	// Another server has none: from here on it is own load.
	w.view.begin("another", now)
	require.Equal(t, []load{{}, {2, 100}}, renumbered(w))
	theirs.Release()
	x.Released(nil)
	require.Equal(t, []load{{}, {1, 100}}, renumbered(w))
	require.Empty(t, w.desk.reserved.take(), "and it is sent no news of it")
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
	l := newReserved()
	now := time.Now()
	add := func(id string) *Reservation {
		return l.add(&warmpathv1.Reservation{Id: id, LeaseMs: 15_000}, "r", 10, now)
	}
	a, b := add("a"), add("b")
	a.Prefilled()
	a.Prefilled()
	a.Released(&policy.Outcome{Err: errors.New("broken"), Sent: true, Usage: policy.NoUsage})
	a.Released(nil)
	a.Prefilled()
	require.Equal(t, []string{"a LIFE_STAGE_PREFILL_COMPLETE 0", "a LIFE_STAGE_RELEASED 2"}, stages(l.take()))
	require.Equal(t, load{1, 10}, l.on("r"))

	l.renew(now.Add(4 * time.Second))
	require.Empty(t, l.take())
	l.renew(now.Add(6 * time.Second))
	require.Equal(t, []string{"b LIFE_STAGE_PROGRESS 0"}, stages(l.take()), "a long stream keeps its lease")
	l.renew(now.Add(time.Minute))
	require.Empty(t, l.take(), "its lease is over there")
	require.Zero(t, l.on("r"))
	b.Released(nil)
	require.Empty(t, l.take())

	c := add("c") // the server cannot be reached: what waits to be sent keeps no lease
	for at := 4 * time.Second; at < 15*time.Second; at += time.Second {
		l.renew(now.Add(at))
	}
	require.Equal(t, load{1, 10}, l.on("r"))
	l.renew(now.Add(15 * time.Second))
	require.Zero(t, l.on("r"))
	require.Empty(t, l.take())
	c.Released(nil)

	l.drop(&warmpathv1.Reservation{Id: "late", LeaseMs: 1})
	l.drop(nil)
	require.Equal(t, []string{"late LIFE_STAGE_RELEASED 0"}, stages(l.take()))
	require.Empty(t, l.loads)
	for i := range 2 * maxPending {
		l.drop(&warmpathv1.Reservation{Id: fmt.Sprint(i)})
	}
	require.Len(t, l.take(), maxPending)
	require.Empty(t, l.live)
	var none *Reservation
	none.Prefilled()
	none.Released(nil)
}
