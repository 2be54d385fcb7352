package server

import (
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
  chat: {policy: {prefix_cache_affinity: {}}, register: true, replicas: [{id: a, address: "10.0.0.1:1"}, {id: b, address: "10.0.0.2:1"}]}
`

// A config that is put into force while the server works costs nothing that callers hold: leases, watches, what they
// reported, who registered, what was learned, and the versions that they know.
func TestReloadKeepsEverything(t *testing.T) {
	f := start(t, reloaded)
	_, err := f.pb.Register(soon(t), &warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: "r", Address: "10.0.0.9:1"}})
	require.NoError(t, err)
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "x", Load: true})
	w.next()
	w.report(1, true, loadOf([3]int{1, 5, 500}))
	f.heard(t, "x", 1)
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
	told, err := f.pb.ReportLife(soon(t), &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{{
		Reservation: first.GetReservation().GetId(), Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED,
	}}})
	require.NoError(t, err)
	require.Empty(t, told.GetUnknown())
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

// A config that a deployment cannot take is an error, and nothing of it is in force: neither there nor elsewhere.
func TestReloadThatFails(t *testing.T) {
	const two = reloaded + "  other: {policy: {round_robin: {}}, target: \"dns:///127.0.0.1:1\"}\n"
	f := start(t, two)
	changed := parse(t, strings.NewReplacer("10s", "9s", "prefix_cache_affinity", "breaks", "127.0.0.1:1", "127.0.0.1:2").Replace(two))
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
