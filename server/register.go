package server

import (
	"context"
	"math"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/admission"
	"github.com/warmpath/warmpath/internal/eventsource"
	"github.com/warmpath/warmpath/internal/fleet"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Bounds of a registration.
const (
	maxRegistered = 10_000 // replicas that register themselves in one deployment
	maxStats      = 64
	maxNames      = 1000 // models, or adapters
	maxText       = 1024 // bytes of an address, a zone or a node
	// maxRegisteredRanks bounds the data-parallel ranks, each of which may be a connection.
	maxRegisteredRanks = 256
	// registerLease is the lease of a registration that requests none, maxRegisterLease the longest.
	registerLease, maxRegisterLease = 10 * time.Second, time.Hour
)

// Register implements the service.
func (s services) Register(ctx context.Context, r *warmpathv1.RegisterRequest) (*warmpathv1.RegisterResponse,
	error) {
	p := s.principalOf(ctx)
	d, err := s.named(p, r.GetDeployment())
	if err != nil {
		return nil, err
	}
	if !p.rules.Load().Register {
		return nil, status.Errorf(codes.PermissionDenied, "the principal %q may not register replicas: set its register",
			p.name)
	}
	m, err := decodeReplica(r.GetReplica())
	if err != nil {
		return nil, err
	}
	host, _, _ := net.SplitHostPort(addressOf(ctx)) // empty = not known
	var a *warmpathv1.RegisterResponse
	d.update(func(x *sources) (changed bool) {
		if err = checkEvents(&m, host, x.config.RegisterEventHosts); err == nil {
			a, changed, err = x.register(r, m)
			d.peers.registered(r, err)
		}
		return changed
	})
	return a, err
}

// decodeReplica is as strict as a fleet file. Its errors are statuses that name the field.
func decodeReplica(r *warmpathv1.Replica) (described, error) {
	if len(r.GetStats()) > maxStats || len(r.GetModels()) > maxNames || len(r.GetAdapters()) > maxNames {
		return described{}, invalid("replica: more than %d stats, or more than %d models or adapters", maxStats, maxNames)
	}
	for name, text := range map[string]string{
		"address": r.GetAddress(), "server_name": r.GetServerName(), "zone": r.GetZone(), "node": r.GetNode(),
		"kv_events": r.GetKvEvents(), "kv_events_replay": r.GetKvEventsReplay(), "kv_bootstrap": r.GetKvBootstrap(),
	} {
		if len(text) > maxText {
			return described{}, invalid("replica.%s: longer than %d bytes", name, maxText)
		}
	}
	for name, x := range r.GetStats() {
		if len(name) > maxName || math.IsNaN(x) || math.IsInf(x, 0) {
			return described{}, invalid("replica.stats: %.20q is longer than %d bytes, or is not finite", name, maxName)
		}
	}
	for _, name := range append(r.GetModels()[:len(r.GetModels()):len(r.GetModels())], r.GetAdapters()...) {
		if len(name) > maxName {
			return described{}, invalid("replica: the name %.20q is longer than %d bytes", name, maxName)
		}
	}
	if r.GetRanks() > maxRegisteredRanks {
		return described{}, invalid("replica.ranks: %d are more than %d", r.GetRanks(), maxRegisteredRanks)
	}
	m := described{Attributes: fleet.FromMessage(r)}
	if err := admission.Admit(&m.Attributes); err != nil {
		return described{}, invalid("replica.%v", err)
	}
	m.KVTokens = int(min(r.GetKvTokens(), maxLength))
	return m, nil
}

// checkEvents refuses a source of KV events that makes the server listen, or that is neither on the replica's host,
// nor on that of the connection, nor on one of hosts.
func checkEvents(m *described, peer string, hosts []string) error {
	if m.KVEvents == "" {
		return nil
	}
	src, err := eventsource.Parse(eventsource.Declared(m.Attributes, "", ""))
	if err != nil {
		return invalid("replica.%v", err)
	}
	if src.Listen {
		return invalid("replica.kv_events: a replica that registers has an address to dial: want tcp://HOST:port")
	}
	own, _, _ := net.SplitHostPort(m.Address)
	allowed := append([]string{own, peer}, hosts...)
	for field, at := range map[string]string{"kv_events": src.Address, "kv_events_replay": src.Replay} {
		host, _, _ := net.SplitHostPort(at)
		if at != "" && !slices.Contains(allowed, host) && !slices.Contains(hosts, anyHost) {
			return invalid("replica.%s: %q is not the replica's host: "+
				"use HOST, or add it to the deployment's register_event_hosts", field, host)
		}
	}
	return nil
}

// anyHost stands for all hosts in register_event_hosts.
const anyHost = "*"
