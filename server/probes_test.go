package server

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/warmpath/warmpath/balancer/policy"
	ownhealth "github.com/warmpath/warmpath/internal/health"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const (
	isServing  = healthpb.HealthCheckResponse_SERVING
	notServing = healthpb.HealthCheckResponse_NOT_SERVING
)

// engine is a replica with a health service; nil = it has none.
func engine(t testing.TB, h *health.Server, opts ...grpc.ServerOption) (address string) {
	t.Helper()
	s := grpc.NewServer(opts...)
	if h != nil {
		healthpb.RegisterHealthServer(s, h)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	t.Cleanup(func() {
		s.Stop()
		require.NoError(t, <-served)
	})
	return lis.Addr().String()
}

func replicaAt(id, address string) described {
	return described{Attributes: policy.Attributes{ID: id, Address: address}}
}

func TestRoundsOfChecks(t *testing.T) {
	well, other := health.NewServer(), health.NewServer()
	members := []described{
		replicaAt("well", engine(t, well)), replicaAt("other", engine(t, other)),
		replicaAt("silent", engine(t, nil)), replicaAt("gone", "127.0.0.1:1"),
	}
	clock := newClock()
	d := new(deployment)
	d.sources = sources{log: discard, now: clock.now, roster: &d.roster}
	defer d.conns.close()
	round := func(members []described) []string { return slices.Sorted(maps.Keys(d.round(t, members))) }
	require.Empty(t, round(members), "one failure is not enough")
	found := clock.now()
	require.Equal(t, []string{"gone"}, round(members))
	well.SetServingStatus("", notServing)
	clock.advance(time.Minute)
	unwell := d.round(t, members)
	require.Len(t, unwell, 2, "NOT_SERVING once is enough")
	require.Equal(t, healthChecks{maxFailures, clock.now(), "NOT_SERVING"}, unwell["well"])
	require.Equal(t, found, unwell["gone"].since)
	require.Contains(t, unwell["gone"].why, "Unavailable: ")
	well.SetServingStatus("", isServing)
	require.Equal(t, []string{"gone"}, round(members))

	moved := append(members[:3:3], replicaAt("gone", members[0].Address))
	require.Empty(t, round(moved), "under its new address it is healthy")
	require.Empty(t, d.round(t, nil))
}

// Clients receive a replica that does not serve as draining, until it serves again. If none serves, all stay in use.
func TestUnwellReplicasDrain(t *testing.T) {
	a, b := health.NewServer(), health.NewServer()
	f := start(t, `
load_interval: 10s
deployments:
  chat:
    policy: {round_robin: {}}
    health_check: 100ms
    replicas: [{id: a, address: "`+engine(t, a)+`"}, {id: b, address: "`+engine(t, b)+`"}]`)
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "x"})
	known := make(map[uint32]*warmpathv1.Replica)
	until := func(drains ...bool) {
		t.Helper()
		for len(known) < 2 || known[1].GetDraining() != drains[0] || known[2].GetDraining() != drains[1] {
			apply(known, w.next().GetFleet())
		}
	}
	until(false, false)
	a.SetServingStatus("", notServing)
	until(true, false)
	require.Eventually(t, func() bool { // on a busy machine b may not answer checks in time, for a moment
		for range 10 {
			if f.choose(t, &warmpathv1.ChooseReplicaRequest{}).GetReplica().GetId() != "b" {
				return false
			}
		}
		return true
	}, 30*time.Second, time.Millisecond)
	b.SetServingStatus("", notServing)
	until(false, false)
	a.SetServingStatus("", isServing)
	until(false, true)
	b.SetServingStatus("", isServing)
	until(false, false)

	a.SetServingStatus("", notServing)
	until(true, false)
	require.NoError(t, f.Update(parse(t, `
load_interval: 10s
deployments: {chat: {policy: {round_robin: {}}, replicas: [{id: a, address: "a:1"}, {id: b, address: "b:1"}]}}`)))
	until(false, false)
}

// A replica that registers reports its own state: it is not checked, and what a check has found does not count.
func TestRegisteredReplicasAreNotChecked(t *testing.T) {
	f := start(t, "deployments: {chat: {register: true, replicas: [{id: a, address: 'a:1'}, {id: c, address: 'c:1'}]}}")
	d := f.deployment("chat")
	register := func(id string) {
		_, err := f.pb.Register(soon(t), &warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: id, Address: id + ":1"}})
		require.NoError(t, err)
	}
	register("b")
	require.NoError(t, d.check(soon(t), "b"))
	require.Error(t, d.check(soon(t), "a"))
	states := func() (all []string) {
		for _, r := range f.status(t, "chat").GetReplicas() {
			all = append(all, r.GetId()+" "+r.GetState())
		}
		return all
	}
	found(d, "a")
	require.Equal(t, []string{"a not_serving", "c ready", "b ready"}, states())
	register("a")
	require.Equal(t, []string{"a ready", "c ready", "b ready"}, states())
	found(d, "a")
	require.Equal(t, []string{"a ready", "c ready", "b ready"}, states())
}

func TestMark(t *testing.T) {
	fleet := func() []described {
		all := []described{replicaAt("a", "a:1"), replicaAt("b", "b:1"), replicaAt("c", "c:1")}
		all[2].Draining = true
		return all
	}
	drains := func(unwell ...string) (all []string) {
		members := fleet()
		mark(members, func(id string) bool { return slices.Contains(unwell, id) })
		for _, m := range members {
			if m.Draining {
				all = append(all, m.ID)
			}
		}
		return all
	}
	require.Equal(t, []string{"c"}, drains())
	require.Equal(t, []string{"a", "c"}, drains("a"))
	require.Equal(t, []string{"c"}, drains("a", "b"), "the only other replica drains")
	require.Equal(t, []string{"b", "c"}, drains("b", "gone"))
}

// round checks a fleet of these members, and returns those that do not serve.
func (d *deployment) round(t *testing.T, members []described) map[string]healthChecks {
	d.mu.Lock()
	d.conns.change(d.roster.set(members))
	order := d.roster.order
	d.mu.Unlock()
	unwell := make(map[string]healthChecks)
	for _, m := range order {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		err := d.check(ctx, m.ID)
		cancel()
		d.mu.Lock()
		d.sources.checked(m.Attributes, err)
		if m.health.unwell() {
			unwell[m.ID] = m.health
		}
		d.mu.Unlock()
	}
	return unwell
}

// described are the members of a deployment.
func (d *deployment) described() (all []described) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.roster.order {
		all = append(all, m.described)
	}
	return all
}

// With replica_tls the server verifies the replica, presents its own certificate, and reads both from the current
// files.
func TestReplicasAreReachedByTLS(t *testing.T) {
	a := newAuthority(t)
	dir := tlsFiles(t, a)
	config := &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: a.pool()}
	cert, key := a.pair("engine")
	own, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	config.Certificates = []tls.Certificate{own}
	address := engine(t, health.NewServer(), grpc.Creds(credentials.NewTLS(config)))
	f := start(t, `
load_interval: 10s
deployments:
  chat:
    replica_tls: {ca: `+dir.path("ca.pem")+", cert: "+dir.path("cert.pem")+", key: "+dir.path("key.pem")+`}
    replicas: [{id: a, address: "`+address+`"}]`)
	d := f.deployment("chat")
	d.tasks.stop() // the rounds are the test's
	well := d.described()
	require.Empty(t, d.round(t, well))
	misnamed := replicaAt("a", address)
	misnamed.ServerName = "other.example"
	require.Empty(t, d.round(t, []described{misnamed}), "one failure is not enough")
	require.Contains(t, d.round(t, []described{misnamed}), "a", "the certificate has another name")
	require.Empty(t, d.round(t, well))

	dir.write("ca.pem", pemOf("CERTIFICATE", newAuthority(t).cert.Raw))
	require.Eventually(t, func() bool {
		d.round(t, nil) // so that it is connected again
		d.round(t, well)
		return len(d.round(t, well)) > 0
	}, 20*time.Second, 10*time.Millisecond, "the authority is not trusted any more")
	d.round(t, nil)
	d.conns.secure(nil)
	require.Empty(t, d.round(t, well))
	require.Contains(t, d.round(t, well), "a", "plaintext")
}

// found puts into force that a replica reports that it does not serve.
func found(d *deployment, id string) {
	d.update(func(x *sources) bool {
		return x.checked(x.roster.byID[id].Attributes, ownhealth.NotServing("NOT_SERVING"))
	})
}

// A reload that restarts the checks keeps their results: a replica that hangs stays out of service.
func TestReloadKeepsTheResultsOfChecks(t *testing.T) {
	text := `
load_interval: 10s
deployments:
  chat:
    health_check: 100ms
    replicas: [{id: a, address: "` + engine(t, health.NewServer()) + `"}, {id: gone, address: "127.0.0.1:1"}]`
	f := start(t, text)
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "x"})
	known := make(map[uint32]*warmpathv1.Replica)
	for len(known) < 2 || !known[2].GetDraining() {
		apply(known, w.next().GetFleet())
	}
	d := f.deployment("chat")
	d.mu.Lock()
	since := d.roster.byID["gone"].health.since
	d.mu.Unlock()
	f.advance(time.Minute)
	require.NoError(t, f.Update(parse(t, strings.Replace(text, "100ms", "101ms", 1))))
	d.tasks.stop()
	require.True(t, d.roster.byID["gone"].health.unwell())
	require.Equal(t, since, d.roster.byID["gone"].health.since)
	require.True(t, d.roster.numbered(2).Draining)
}
