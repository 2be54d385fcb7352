package server

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/roundrobin"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const reloaded = `
load_interval: 10s
deployments:
  chat: {policy: {kv_aware: {}}, register: true, replicas: [{id: a, address: "10.0.0.1:1"}, {id: b, address: "10.0.0.2:1"}]}
`

// A reload keeps leases, watches, reports, registrations, what the policy has learned, and the versions that clients
// have.
func TestReloadKeepsEverything(t *testing.T) {
	f := start(t, reloaded)
	_, err := f.pb.Register(soon(t), &warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: "r", Address: "10.0.0.9:1"}})
	require.NoError(t, err)
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "x", Load: true})
	w.next()
	w.report(1, true, loadOf([3]int{1, 5, 500}))
	f.received(t, "x", 1)
	key := hashed(64, 16, 0)
	key.RequestId = "1"
	ask := &warmpathv1.ChooseReplicaRequest{Key: key, Mode: warmpathv1.PickMode_PICK_MODE_RESERVE}
	first := f.choose(t, ask)
	before, ledger := f.deployment("chat"), f.deployment("chat").balance.ledger.loads()

	changed := strings.NewReplacer("10s", "9s", "{id: b, ", "{id: c, address: \"10.0.0.3:1\"}, {id: b, ").Replace(reloaded)
	require.NoError(t, f.Update(parse(t, "max_reservations: 70\n"+changed)))
	after := f.deployment("chat")
	require.Same(t, before, after)
	require.Equal(t, ledger, after.balance.ledger.loads())
	f.tick("chat")
	known := make(map[uint32]*warmpathv1.Replica)
	for len(known) == 0 { // on the same stream
		apply(known, w.next().GetFleet())
	}
	for n, r := range known {
		require.Equal(t, "c", r.GetId(), "only what is new, under a number of its own: %d", n)
	}
	again := f.choose(t, ask)
	require.Equal(t, first.GetReservation().GetId(), again.GetReservation().GetId())
	require.True(t, again.GetReservation().GetRepeated())
	other := f.choose(t, &warmpathv1.ChooseReplicaRequest{Key: hashed(64, 16, 0), Mode: query})
	require.Equal(t, "prefix_match", other.GetDecision().GetReason())
	require.Equal(t, first.GetReplica().GetId(), other.GetReplica().GetId())
	require.Len(t, f.deploymentMembers("chat"), 4)
	answer, err := f.pb.ReportLife(soon(t), &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{{
		Reservation: first.GetReservation().GetId(), Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED,
	}}})
	require.NoError(t, err)
	require.Empty(t, answer.GetUnknown())
}

// breaks makes the policy "breaks" one that cannot be built.
var breaks atomic.Bool

func init() {
	policy.Register("breaks", func(struct{}) (policy.Policy, error) {
		if breaks.Load() {
			return policy.Policy{}, errors.New("it breaks")
		}
		return roundrobin.New(roundrobin.Config{})
	})
}

// A config that a deployment cannot take is an error, and nothing of it comes into force, in any deployment.
func TestReloadThatFails(t *testing.T) {
	const two = reloaded + "  other: {policy: {round_robin: {}}, target: \"dns:///127.0.0.1:1\"}\n"
	f := start(t, two)
	changed := parse(t, strings.NewReplacer("10s", "9s", "kv_aware", "breaks", "127.0.0.1:1", "127.0.0.1:2").Replace(two))
	breaks.Store(true)
	defer breaks.Store(false)
	require.ErrorContains(t, f.Update(changed), "deployments.chat: config: policy.breaks: it breaks")
	for _, name := range []string{"chat", "other"} {
		require.Equal(t, 10*time.Second, time.Duration(f.deployment(name).limits.Load().LoadInterval))
	}
	require.Equal(t, "dns:///127.0.0.1:1", f.deployment("other").sources.config.Target)
	require.Len(t, f.deploymentMembers("chat"), 2)
	breaks.Store(false)
	require.NoError(t, f.Update(changed))
	require.Equal(t, "breaks", f.deployment("chat").hosted.Load().policy())
	require.Equal(t, "dns:///127.0.0.1:2", f.deployment("other").sources.config.Target)
}

// A new policy starts with the fleet: no pick fails while it comes into force.
func TestReloadFailsNoPick(t *testing.T) {
	text := func(policy string) string { return manyReplicas(2000) + "    policy: {" + policy + ": {}}\n" }
	configs := []*Config{parse(t, text("round_robin")), parse(t, text("power_of_two_choices"))}
	f := start(t, text("round_robin"))
	ended := make(chan error, 2)
	picking, stop := context.WithCancel(t.Context())
	defer stop()
	for range 2 {
		go func() {
			for picking.Err() == nil {
				if _, err := (services{Server: f.Server}).ChooseReplica(t.Context(), &warmpathv1.ChooseReplicaRequest{Mode: query}); err != nil {
					ended <- err
					return
				}
			}
			ended <- nil
		}()
	}
	for i := range 20 {
		require.NoError(t, f.Update(configs[(i+1)%2]))
	}
	stop()
	for range 2 {
		require.NoError(t, <-ended)
	}
}

// Reservations count while they are held, whichever policy made them.
func TestReloadKeepsTheLoadOfReservations(t *testing.T) {
	config := func(policy string) string {
		return strings.NewReplacer("kv_aware", policy).Replace(reloaded)
	}
	f := start(t, config("round_robin"))
	key := &warmpathv1.RequestKey{Prompt: tokens(100)}
	a := f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: reserve, Pinned: "a", Key: key})
	ongoing := func() []uint32 {
		var all []uint32
		for _, r := range f.status(t, "").GetReplicas() {
			all = append(all, r.GetOngoing(), uint32(r.GetQueuedTokens()))
		}
		return all
	}
	idlest := func() string {
		defer f.tick("chat")
		defer f.advance(queryHold)
		return f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: query}).GetReplica().GetId()
	}
	require.NoError(t, f.Update(parse(t, config("power_of_two_choices"))))
	for range 2 {
		require.Equal(t, []uint32{1, 100, 0, 0}, ongoing())
		require.Equal(t, "b", idlest())
	}
	f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: reserve, Pinned: "b"})
	f.tick("chat")
	require.Equal(t, []uint32{1, 100, 1, 0}, ongoing())
	for _, stage := range []warmpathv1.LifeStage{prefill, released} {
		_, err := f.pb.ReportLife(soon(t), &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{{
			Reservation: a.GetReservation().GetId(), Stage: stage,
		}}})
		require.NoError(t, err)
		f.tick("chat")
		require.Equal(t, map[warmpathv1.LifeStage][]uint32{prefill: {1, 0, 1, 0}, released: {0, 0, 1, 0}}[stage], ongoing())
	}
	require.Equal(t, "a", idlest())
}

// An ejected replica is probed under the new policy, and not used as a healthy one.
func TestReloadKeepsEjections(t *testing.T) {
	f := start(t, fourReplicas)
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "a"})
	w.next()
	w.shows(&warmpathv1.ReplicaOutcomes{Replica: 2, Failures: 5})
	w.ejected(2)
	require.NoError(t, f.Update(parse(t, strings.Replace(fourReplicas, "round_robin", "power_of_two_choices", 1))))
	require.Equal(t, []uint32{2}, w.ejected(2), "and the client is to probe it")
	f.tick("chat")
	r := f.status(t, "").GetReplicas()[1]
	require.Equal(t, "ejected", r.GetState())
	require.Equal(t, "half_open", r.GetHealth()[0].GetState())
}
