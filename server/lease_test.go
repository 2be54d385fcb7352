package server

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/endpoint"
	"github.com/warmpath/warmpath/internal/router/part"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

func (f *fixture) report(t testing.TB, id string, stage warmpathv1.LifeStage) (known bool) {
	t.Helper()
	a, err := f.pb.ReportLife(soon(t), &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{{Reservation: id, Stage: stage}}})
	require.NoError(t, err)
	return len(a.GetUnknown()) == 0
}

const (
	progress = warmpathv1.LifeStage_LIFE_STAGE_PROGRESS
	prefill  = warmpathv1.LifeStage_LIFE_STAGE_PREFILL_COMPLETE
	released = warmpathv1.LifeStage_LIFE_STAGE_RELEASED
)

// load is what is reserved in the deployment chat.
func (f *fixture) load() (b replicaLoad) {
	for _, r := range f.deployment("chat").hosted.Load().router.View().Replicas() {
		b.add(replicaLoad{int64(r.Ongoing()), int64(r.QueuedTokens())}, 1)
	}
	return b
}

// whole is the load there as untrusted principals see it.
func (f *fixture) whole() (b replicaLoad) {
	for _, held := range f.deployment("chat").picks.leases.expire(f.Server.now()) {
		b.add(held, 1)
	}
	return b
}

// A deployment that is being removed answers UNAVAILABLE, not that it is full, so that callers go elsewhere.
func TestPicksOfADeploymentThatIsTakenOut(t *testing.T) {
	f := start(t, quiet)
	f.deployment("chat").picks.leases.close()
	_, err := f.pb.ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{})
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
}

func TestReservations(t *testing.T) {
	f := start(t, quiet)
	ask := func(id string) *warmpathv1.Reservation {
		return f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: reserve, Key: &warmpathv1.RequestKey{RequestId: id, Prompt: tokens(100)}}).GetReservation()
	}
	pass := func(d time.Duration) { f.clock.advance(d); f.tick("chat") }

	first := ask("r1")
	require.EqualValues(t, 60_000, first.GetLeaseMs())
	require.False(t, first.GetRepeated())
	again := ask("r1")
	require.True(t, again.GetRepeated())
	require.Equal(t, first.GetId(), again.GetId())
	require.Equal(t, replicaLoad{1, 100}, f.load(), "reserved once")
	require.NotEqual(t, first.GetId(), ask("").GetId())
	require.NotEqual(t, ask("").GetId(), ask("").GetId(), "without an id each request is another")
	require.Equal(t, replicaLoad{4, 400}, f.load())

	pass(40 * time.Second)
	require.True(t, f.report(t, first.GetId(), prefill))
	require.True(t, f.report(t, first.GetId(), prefill))
	require.Equal(t, replicaLoad{4, 300}, f.load())
	require.Equal(t, replicaLoad{4, 300}, f.whole())
	pass(40 * time.Second)
	require.Equal(t, replicaLoad{1, 0}, f.load(), "the other leases have expired, the report renewed the first")
	require.Equal(t, replicaLoad{1, 0}, f.whole())
	require.True(t, f.report(t, first.GetId(), progress))
	pass(59 * time.Second)
	require.Equal(t, replicaLoad{1, 0}, f.load())
	require.True(t, f.report(t, first.GetId(), released))
	require.False(t, f.report(t, first.GetId(), released), "released once")
	require.False(t, f.report(t, first.GetId(), progress))
	require.Zero(t, f.load())
	require.False(t, ask("r1").GetRepeated(), "a new one")
	pass(time.Minute)
	require.Zero(t, f.load())
	for _, id := range []string{"", "#", "chat#", "chat", "other#x"} {
		require.False(t, f.report(t, id, released))
	}
}

// What becomes of a request may be unseen: its reservation counts like a pick of mode count.
func TestUnseenReservations(t *testing.T) {
	f := start(t, quiet)
	a := f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: reserve, Key: &warmpathv1.RequestKey{Prompt: tokens(100)}}).GetReservation()
	host := endpoint.Of(f.Server)
	host.Unseen(a.GetId())
	for _, id := range []string{a.GetId(), "chat#other", "other#x", ""} {
		host.Unseen(id)
		require.False(t, f.report(t, id, released))
	}
	require.Equal(t, replicaLoad{1, 100}, f.load())
	pass := func(d time.Duration) { f.clock.advance(d); f.tick("chat") }
	pass(countedHold / 5)
	require.Equal(t, replicaLoad{1, 0}, f.load())
	pass(countedHold - countedHold/5)
	require.Zero(t, f.load())
	require.Zero(t, f.deployment("chat").picks.leases.held())
	require.Zero(t, f.deployment("chat").picks.leases.expired.Load())
}

func TestShorterLeases(t *testing.T) {
	f := start(t, quiet)
	for lease, want := range map[uint32]uint32{0: 60_000, 500: 500, 100_000: 60_000} {
		a := f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: reserve, LeaseMs: lease})
		require.Equal(t, want, a.GetReservation().GetLeaseMs())
	}
	require.EqualValues(t, 3, f.load().ongoing)
	f.clock.advance(500 * time.Millisecond)
	f.tick("chat")
	require.EqualValues(t, 2, f.load().ongoing)
}

// A pick without reports counts for ten seconds, its prompt for a fifth of that.
func TestCountedPicksFade(t *testing.T) {
	f := start(t, quiet)
	f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: count, Key: &warmpathv1.RequestKey{Prompt: tokens(100)}})
	f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: query, Key: &warmpathv1.RequestKey{Prompt: tokens(100)}})
	require.Equal(t, replicaLoad{2, 200}, f.load())
	for _, step := range []struct {
		after time.Duration
		want  replicaLoad
	}{{100, replicaLoad{2, 100}}, {500, replicaLoad{1, 100}}, {2000, replicaLoad{1, 0}}, {9999, replicaLoad{1, 0}}, {10_000, replicaLoad{}}} {
		f.clock.mu.Lock()
		f.clock.at = time.Unix(1_000_000, 0).Add(step.after * time.Millisecond)
		f.clock.mu.Unlock()
		f.tick("chat")
		require.Equal(t, step.want, f.load(), "after %d ms", step.after)
		require.Equal(t, step.want, f.whole(), "after %d ms", step.after)
	}
}

func TestReservationsAreBounded(t *testing.T) {
	f := start(t, "max_reservations: 2\n"+quiet)
	first := f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: reserve})
	f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: count})
	_, err := f.pb.ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Mode: query})
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.ErrorContains(t, err, "max_reservations")
	require.True(t, f.report(t, first.GetReservation().GetId(), released))
	f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: reserve})
}

// Simultaneous calls for one request get the same reservation, or the same error.
func TestIdempotentAtOnce(t *testing.T) {
	f := start(t, quiet)
	var wg sync.WaitGroup
	ids := make([]string, 16)
	for i := range ids {
		wg.Go(func() {
			a, err := f.pb.ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Mode: reserve, Key: &warmpathv1.RequestKey{RequestId: "same"}})
			if err == nil {
				ids[i] = a.GetReservation().GetId()
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		require.Equal(t, ids[0], id)
	}
	require.EqualValues(t, 1, f.load().ongoing)
	for range 2 {
		_, err := f.pb.ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{
			Mode: reserve, Pinned: "none", Key: &warmpathv1.RequestKey{RequestId: "failed"},
		})
		require.Equal(t, codes.Unavailable, status.Code(err))
	}
	require.EqualValues(t, 1, f.load().ongoing)
	require.Len(t, f.deployment("chat").picks.leases.byName, 1)
}

// Attempts at one request have reservations of their own: the release of one leaves the other. Without a number
// they are one.
func TestAttemptsAreApart(t *testing.T) {
	f := start(t, quiet)
	ask := func(attempt uint64) *warmpathv1.Reservation {
		return f.choose(t, &warmpathv1.ChooseReplicaRequest{
			Mode: reserve, Attempt: attempt, Key: &warmpathv1.RequestKey{RequestId: "same", Prompt: tokens(100)},
		}).GetReservation()
	}
	first, second := ask(7), ask(8)
	require.False(t, second.GetRepeated())
	require.NotEqual(t, first.GetId(), second.GetId())
	require.Equal(t, replicaLoad{2, 200}, f.load())
	again := ask(8)
	require.True(t, again.GetRepeated())
	require.Equal(t, second.GetId(), again.GetId())
	require.True(t, f.report(t, first.GetId(), released))
	require.Equal(t, replicaLoad{1, 100}, f.load())
	require.True(t, f.report(t, second.GetId(), progress), "it is still held")

	older := ask(0)
	require.False(t, older.GetRepeated())
	require.Equal(t, older.GetId(), ask(0).GetId())
	require.Equal(t, replicaLoad{2, 200}, f.load())
}

// A call that repeats one that waits goes on when the first is canceled or has a shorter wait. In all it waits as long
// as it asked for.
func TestTheFirstToAskMayGo(t *testing.T) {
	const short, long = 10_000, 60_000 // ms
	for _, c := range []struct {
		name            string
		wait            uint32        // of the first
		deadline, leave time.Duration // when its call ends, and when it is cancelled
	}{
		{"cancelled", long, time.Hour, 10 * time.Second},
		{"deadline", long, 10 * time.Second, time.Hour},
		{"waits less", short, time.Hour, time.Hour},
	} {
		for _, room := range []bool{true, false} {
			t.Run(fmt.Sprint(c.name, ", room ", room), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := parse(t, several)
					d := deploy(t, f, "code", time.Now)
					defer d.close()
					p := unrestricted()
					choose := func(ctx context.Context, id string, wait uint32) (*warmpathv1.ChooseReplicaResponse, error) {
						r := &warmpathv1.ChooseReplicaRequest{Mode: reserve, WaitMs: wait, Key: &warmpathv1.RequestKey{RequestId: id}}
						var q policy.Request
						if err := decodeKey(r, &q); err != nil {
							return nil, err
						}
						return d.picks.choose(ctx, p, r, &q)
					}
					held, err := choose(t.Context(), "held", long)
					require.NoError(t, err)
					began := time.Now()
					first, leave := context.WithTimeout(t.Context(), c.deadline)
					time.AfterFunc(c.leave, leave)
					gone := make(chan struct{})
					var wg sync.WaitGroup
					wg.Go(func() {
						defer close(gone)
						_, err := choose(first, "same", c.wait)
						assert.Error(t, err)
					})
					synctest.Wait()
					wg.Go(func() {
						a, err := choose(t.Context(), "same", long)
						if room {
							assert.NoError(t, err)
							assert.False(t, a.GetReservation().GetRepeated())
							return
						}
						assert.Error(t, err)
						assert.Equal(t, long*time.Millisecond, time.Since(began))
					})
					<-gone
					synctest.Wait()
					if room {
						d.picks.leases.end(held.GetReservation().GetId()).release(policy.Outcome{})
					}
					wg.Wait()
					leave()
				})
			})
		}
	}
}

// A reservation keeps neither the excluded replicas of its request nor those that it has tried.
func TestLeasesKeepNoNames(t *testing.T) {
	f := start(t, quiet)
	r := &warmpathv1.ChooseReplicaRequest{Mode: reserve, Tried: []string{"a", "b"}, Excluded: []string{"x"}}
	for i := range maxExcluded - 2 {
		r.Tried = append(r.Tried, strings.Repeat("x", 200)+fmt.Sprint(i))
	}
	a := f.choose(t, r)
	require.Equal(t, "retry", a.GetDecision().GetReason())
	require.Equal(t, "c", a.GetReplica().GetId(), "the others were tried")
	x := f.deployment("chat").picks.leases.byID[a.GetReservation().GetId()]
	require.Empty(t, part.OfRequest(&x.q).Tried)
	require.Empty(t, x.q.Exclude)
}
