package server

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const registering = `
load_interval: 10s
deployments:
  chat: {register: true, policy: {power_of_two_choices: {}}, replicas: [{id: fixed, address: "f:1"}]}`

func TestRegister(t *testing.T) {
	f := start(t, registering)
	ids := func() (all []string) {
		for _, m := range f.deploymentMembers("chat") {
			all = append(all, m.ID)
		}
		return all
	}
	beat := func(r *warmpathv1.RegisterRequest) *warmpathv1.RegisterResponse {
		t.Helper()
		a, err := f.pb.Register(soon(t), r)
		require.NoError(t, err)
		return a
	}
	a := beat(&warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: "r", Address: "r:1"}})
	require.EqualValues(t, 10_000, a.GetLeaseMs())
	require.EqualValues(t, 1_000, a.GetHeartbeatMs())
	require.Equal(t, []string{"fixed", "r"}, ids())
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "x", Load: true})
	require.Len(t, w.next().GetFleet().GetReplicas(), 2)
	f.settle("chat")

	// Its own report is broadcast: draining at once, figures with the next interval.
	beat(&warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: "r", Address: "r:1", Draining: true}})
	require.True(t, w.next().GetFleet().GetReplicas()[0].GetDraining())
	for range 5 {
		require.Equal(t, "fixed", f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: query}).GetReplica().GetId())
	}
	beat(&warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: "r", Address: "r:1", Instance: "second life"}})
	require.Equal(t, "second life", w.next().GetFleet().GetReplicas()[0].GetInstance())
	f.clock.advance(time.Second)
	f.tick("chat")
	w.next() // the load is all zero
	beat(&warmpathv1.RegisterRequest{
		Replica: &warmpathv1.Replica{Id: "r", Address: "r:1", Stats: map[string]float64{"queue": 3}, KvTokens: 1000, Adapters: []string{"l"}},
		Ongoing: proto.Uint32(4), QueuedTokens: proto.Uint64(900),
	})
	require.True(t, w.next().GetFleet().GetReplicas()[0].GetStats() != nil)
	f.tick("chat")
	require.Equal(t, map[uint32]replicaLoad{2: {4, 900}}, columns(w.next().GetLoad().GetLoads()))

	// Its own load counts, or the sum of the clients where that is more.
	w.report(1, true, loadOf([3]int{2, 1, 1000}))
	f.received(t, "x", 1)
	f.tick("chat")
	require.Equal(t, map[uint32]replicaLoad{2: {4, 1000}}, columns(w.next().GetLoad().GetLoads()))
	w.report(2, false, loadOf([3]int{2, 6, 10}))
	f.received(t, "x", 2)
	f.tick("chat")
	require.Equal(t, map[uint32]replicaLoad{2: {6, 900}}, columns(w.next().GetLoad().GetLoads()))
	f.clock.advance(3 * time.Second)
	f.tick("chat")
	l := w.next().GetLoad()
	require.Equal(t, map[uint32]replicaLoad{2: {6, 10}}, columns(l.GetLoads()), "no heartbeat for three seconds")
	require.Equal(t, []uint32{2}, l.GetStale())

	// A replica leaves by a call, or when its lease ends.
	beat(&warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Address: "s:1"}, LeaseMs: 500})
	require.Equal(t, []string{"fixed", "r", "s:1"}, ids())
	f.clock.advance(500 * time.Millisecond)
	f.tick("chat")
	require.Equal(t, []string{"fixed", "r"}, ids())
	beat(&warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: "r", Address: "r:1"}, Leaving: true})
	require.Equal(t, []string{"fixed"}, ids())

	// A replica of the config reports its own state, and stays without heartbeats.
	beat(&warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: "fixed", Address: "elsewhere:1", Draining: true}})
	require.True(t, f.deploymentMembers("chat")[0].Draining)
	require.Equal(t, "f:1", f.deploymentMembers("chat")[0].Address)
	f.clock.advance(time.Minute)
	f.tick("chat")
	require.Equal(t, []string{"fixed"}, ids())
	require.False(t, f.deploymentMembers("chat")[0].Draining)
}

// After a restart all replicas register at once, and heartbeats that change nothing follow. Each is entered, and the
// state and picks are answered meanwhile. The fleet is merged far less often than replicas register.
func TestManyReplicasRegisterAtOnce(t *testing.T) {
	f := start(t, registering)
	const replicas = 3000
	var all errgroup.Group
	for i := range replicas {
		all.Go(func() error {
			r := &warmpathv1.Replica{Id: fmt.Sprint("r", i), Address: fmt.Sprintf("10.0.%d.%d:1", i>>8, i&255)}
			_, err := f.pb.Register(soon(t), &warmpathv1.RegisterRequest{Replica: r, LeaseMs: 3_600_000})
			return err
		})
	}
	registered := make(chan error, 1)
	go func() { registered <- all.Wait() }()
	answered := 0
	for done := false; !done; {
		select {
		case err := <-registered:
			require.NoError(t, err)
			done = true
		default:
			_, err := warmpathv1.NewStatusServiceClient(f.conn).GetStatus(soon(t), new(warmpathv1.GetStatusRequest))
			require.NoError(t, err)
			f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: query})
			answered++
		}
	}
	require.Positive(t, answered)
	require.Len(t, f.deploymentMembers("chat"), replicas+1)
	require.Len(t, f.deployment("chat").hosted.Load().router.View().Connected(), replicas+1)
	version := f.deployment("chat").roster.version
	require.Less(t, version, uint64(replicas/2), "replicas are entered together")
}

// What is merged from the registrations that changed is what is merged from all.
func TestMergedRegistrations(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	c := parse(t, registering)
	some, whole := deploy(t, c, "chat", newClock().now), deploy(t, c, "chat", newClock().now)
	t.Cleanup(some.close)
	t.Cleanup(whole.close)
	fleet := func(d *deployment) map[string]policy.Attributes {
		all := make(map[string]policy.Attributes)
		for _, m := range d.roster.order {
			all[m.ID] = m.Attributes
		}
		routed := make(map[string]policy.Attributes)
		for i, r := range d.hosted.Load().router.View().Replicas() {
			require.Equal(t, i, r.Index())
			require.Same(t, r, d.hosted.Load().router.View().ByID(r.ID))
			require.True(t, r.Connected())
			routed[r.ID] = r.Attributes
		}
		require.Equal(t, all, routed)
		return all
	}
	for range 500 {
		id := fmt.Sprint("r", rng.IntN(20))
		r := &warmpathv1.Replica{Id: id, Address: id + ":1", Draining: rng.IntN(3) == 0, Instance: fmt.Sprint(rng.IntN(3))}
		for i := range rng.IntN(3) {
			r.Adapters, r.Models = append(r.Adapters, fmt.Sprint("a", i)), append(r.Models, fmt.Sprint("m", rng.IntN(3)))
		}
		if rng.IntN(10) == 0 {
			r.Id = "fixed"
		}
		leaving := rng.IntN(6) == 0
		m, err := decodeReplica(r)
		require.NoError(t, err)
		for _, d := range []*deployment{some, whole} {
			if d == whole {
				d.sources.whole = true
			}
			_, err := d.register(&warmpathv1.RegisterRequest{Replica: r, Leaving: leaving}, m)
			require.NoError(t, err)
			d.tick(d.now())
		}
		require.Equal(t, fleet(whole), fleet(some))
		for _, adapter := range []string{"a0", "a1", "gone"} {
			q := policy.Request{Adapter: adapter}
			one, _ := whole.hosted.Load().router.View().Pool(&q, 0)
			other, _ := some.hosted.Load().router.View().Pool(&q, 0)
			names := func(p policy.Pool) (ids []string) {
				for _, r := range p.Replicas {
					ids = append(ids, r.ID)
				}
				slices.Sort(ids)
				return ids
			}
			require.Equal(t, names(one), names(other), adapter)
		}
		require.Equal(t, whole.catalogue.Load().names, some.catalogue.Load().names)
	}
}

// BenchmarkChangedMember is one heartbeat that changes a member of 10,000, until the change is in force for picks here
// and ready for watchers.
func BenchmarkChangedMember(b *testing.B) {
	for _, name := range []string{"power_of_two_choices", "kv_aware", "consistent_hash"} {
		b.Run(name, func(b *testing.B) {
			c := parse(b, "load_interval: 10s\ndeployments: {chat: {register: true, policy: {"+name+": {}}}}")
			d := deploy(b, c, "chat", newClock().now)
			b.Cleanup(d.close)
			replica := func(i int, draining bool) *warmpathv1.Replica {
				return &warmpathv1.Replica{
					Id: fmt.Sprint("r", i), Address: fmt.Sprintf("10.0.%d.%d:1", i>>8, i&255), Models: []string{"m"},
					Adapters: []string{"x", "y"}, Draining: draining,
				}
			}
			const replicas = 10_000
			all := make([]*warmpathv1.Replica, replicas)
			for i := range all {
				all[i] = replica(i, false)
			}
			registers(b, d, all...)
			require.Len(b, d.roster.order, replicas)
			version := d.roster.version
			used := processor()
			b.ResetTimer()
			for i := range b.N {
				r := replica(i%replicas, i/replicas%2 == 0)
				m, err := decodeReplica(r)
				require.NoError(b, err)
				d.mu.Lock()
				_, _, err = d.sources.register(&warmpathv1.RegisterRequest{Replica: r}, m)
				d.refleet()
				parts := d.roster.since(version)
				version = d.roster.version
				d.mu.Unlock()
				require.NoError(b, err)
				require.Len(b, parts[0].GetReplicas(), 1)
			}
			b.ReportMetric(float64((processor()-used).Microseconds())/float64(b.N), "cpu-us/op")
		})
	}
}

func TestRegistrationsAreBounded(t *testing.T) {
	x := sources{config: Deployment{Register: true}, now: time.Now, roster: new(roster)}
	for i := range maxRegistered + 1 {
		_, _, err := x.register(new(warmpathv1.RegisterRequest), replicaAt(fmt.Sprint(i), "r:1"))
		require.Equal(t, i == maxRegistered, status.Code(err) == codes.ResourceExhausted, "%v", err)
	}
}

func TestRefusedRegistrations(t *testing.T) {
	f := start(t, registering)
	nan := proto.CloneOf(&warmpathv1.Replica{Address: "a:1", Stats: map[string]float64{"x": 0}})
	nan.Stats["x"] /= nan.Stats["x"]
	for want, r := range map[string]*warmpathv1.Replica{
		"replica.address: missing":         {},
		"replica.address: \"a\"":           {Address: "a"},
		"replica.id":                       {Id: "a b", Address: "a:1"},
		"replica.ranks":                    {Address: "a:1", Ranks: 1 << 31},
		"replica.weight":                   {Address: "a:1", Weight: nan.Stats["x"]},
		"replica.stats":                    nan,
		"which is more than 262144":        {Address: "a:1", Zone: strings.Repeat("z", maxReplica)},
		"replica.kv_events: \"udp://x:1\"": {Address: "a:1", KvEvents: "udp://x:1"},
	} {
		_, err := f.pb.Register(soon(t), &warmpathv1.RegisterRequest{Replica: r})
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
		require.ErrorContains(t, err, want)
	}
	other := start(t, quiet)
	_, err := other.pb.Register(soon(t), &warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Address: "a:1"}})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
}

// The figures of replicas change with every heartbeat and are not logged; replicas that come or go are.
func TestTheLogHasReplicasThatComeAndGo(t *testing.T) {
	f, text := startLogged(t, "load_interval: 10s\ndeployments: {chat: {register: true}}")
	changes := func() int { return strings.Count(text.String(), `level=INFO msg="warmpath: the fleet changed"`) }
	for i := range 20 {
		for _, id := range []string{"a", "b"} {
			_, err := f.pb.Register(soon(t), &warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: id, Address: id + ":1", Stats: map[string]float64{"waiting": float64(i)}}})
			require.NoError(t, err)
		}
		f.tick("chat")
		f.advance(time.Second)
	}
	require.Equal(t, 2, changes(), "%s", text)
	_, err := f.pb.Register(soon(t), &warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: "a", Address: "a:1"}, Leaving: true})
	require.NoError(t, err)
	require.Equal(t, 3, changes(), "%s", text)
}
