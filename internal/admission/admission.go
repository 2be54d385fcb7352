// Package admission refuses what operators and replicas declare wrongly: fleet files, registrations and the replicas in
// a server's config. It is strict where they can mend it: unknown, repeated and misspelt fields, what is out of
// bounds, an id or an address twice, and KV events whose source cannot be understood. Errors name the entry and the
// field. What clients are sent goes through [fleet.Settle] instead, since its sender may be newer.
package admission

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/eventsource"
	"github.com/warmpath/warmpath/internal/fleet"
	"github.com/warmpath/warmpath/internal/strict"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Parse reads a fleet from JSON, the object of a fleet file. "replicas": [] is a fleet of no replica; an object without
// replicas is an error, since that is what a file looks like while it is being written.
func Parse(text []byte) ([]policy.Attributes, error) {
	var file struct {
		Replicas []policy.Attributes `json:"replicas"`
	}
	if err := strict.Decode(text, &file); err != nil {
		return nil, err
	}
	if file.Replicas == nil {
		return nil, errors.New("replicas: missing")
	}
	entry := func(i int) string { return fmt.Sprintf("replicas[%d]", i) }
	if i, err := fleet.Check(file.Replicas, entry); err != nil {
		return nil, fmt.Errorf("%s.%w", entry(i), err)
	}
	for i, r := range file.Replicas {
		if err := checkEvents(r); err != nil {
			return nil, fmt.Errorf("%s.%w", entry(i), err)
		}
	}
	if err := CheckListeners(file.Replicas); err != nil {
		return nil, err
	}
	return file.Replicas, nil
}

// Admit is as strict about one replica as a fleet file, and fills in its defaults. The error begins with the field at
// fault.
func Admit(r *policy.Attributes) error {
	if err := fleet.Settle(r); err != nil {
		return err
	}
	return checkEvents(*r)
}

// AdmitOwn is Admit for what a replica declares of itself. Its KV events come from an address to dial on the replica's
// host or on one of hosts; [AnyHost] stands for all.
func AdmitOwn(r *policy.Attributes, hosts ...string) error {
	if r.Ranks > maxOwnRanks {
		return fmt.Errorf("ranks: %d are more than %d", r.Ranks, maxOwnRanks)
	}
	if err := Admit(r); err != nil || r.KVEvents == "" {
		return err
	}
	src, err := eventsource.Parse(eventsource.Declared(*r, "", ""))
	if err != nil {
		return err
	}
	if src.Listen {
		return errors.New("kv_events: the source of a replica that declares it itself is an address to dial: want tcp://HOST:port")
	}
	own, _, _ := net.SplitHostPort(r.Address)
	for _, of := range []struct{ field, at string }{{"kv_events", src.Address}, {"kv_events_replay", src.Replay}} {
		host, _, _ := net.SplitHostPort(of.at)
		if of.at != "" && host != own && !slices.Contains(hosts, host) && !slices.Contains(hosts, AnyHost) {
			return fmt.Errorf("%s: %q is not the replica's host: use HOST, "+
				"or add it to the deployment's register_event_hosts if the replica registers", of.field, host)
		}
	}
	return nil
}

const (
	// maxOwnRanks bounds the data-parallel ranks that a replica declares of itself: each may be a connection.
	maxOwnRanks = 256
	// AnyHost stands for all hosts.
	AnyHost = "*"
)

func checkEvents(r policy.Attributes) error {
	if r.KVEvents == "" {
		return nil
	}
	_, err := eventsource.Parse(r)
	return err
}

// listening is what one rank of a replica takes of a port.
type listening struct{ port, host, topic, id, address string }

// CheckListeners refuses replicas that listen on one port for KV events and cannot share it: on different addresses of
// this host, or with topics of which one begins with the other. Replicas with one address are one engine, which several
// deployments may follow. Sources that cannot be understood are left out.
func CheckListeners(fleet []policy.Attributes) error {
	var all []listening
	for _, a := range fleet {
		src, err := eventsource.Parse(a)
		if err != nil || !src.Listen {
			continue
		}
		for rank := range src.Ranks {
			at, _ := src.Rank(rank)
			host, port, _ := net.SplitHostPort(at)
			all = append(all, listening{port, host, src.Topic, a.ID, a.Address})
		}
	}
	slices.SortStableFunc(all, func(a, b listening) int { return cmp.Compare(len(a.topic), len(b.topic)) })
	ports := make(map[string]listening)
	topics := make(map[[2]string]listening) // by port and topic
	for _, b := range all {
		if a, ok := ports[b.port]; ok && a.host != b.host {
			return fmt.Errorf("kv_events of %q and %q: port %s is bound on %s and on %s", a.id, b.id, b.port, a.host, b.host)
		}
		ports[b.port] = b
		for n := range len(b.topic) + 1 {
			if a, ok := topics[[2]string{b.port, b.topic[:n]}]; ok && a.address != b.address {
				return fmt.Errorf("kv_events of %q and %q: both listen on port %s, and their topics %q and %q do not "+
					"distinguish them: give each a ?topic= of its own", a.id, b.id, b.port, a.topic, b.topic)
			}
		}
		topics[[2]string{b.port, b.topic}] = b
	}
	return nil
}

// Message returns a replica as it is sent.
func Message(a policy.Attributes) *warmpathv1.Replica {
	return &warmpathv1.Replica{
		Id: a.ID, Address: a.Address, ServerName: a.ServerName, Zone: a.Zone, Node: a.Node, Weight: a.Weight,
		MaxOngoingRequests: uint32(max(a.MaxOngoing, 0)), Models: a.Models, Adapters: a.Adapters,
		Ranks: uint32(max(a.Ranks, 0)), Draining: a.Draining, Instance: a.Instance, Stats: a.Stats,
		KvEvents: a.KVEvents, KvEventsReplay: a.KVEventsReplay,
		Role: a.Role, Pair: a.Pair, KvBootstrap: a.KVBootstrap, KvEngineId: a.KVEngineID,
	}
}
