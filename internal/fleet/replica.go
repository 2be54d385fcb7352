// Package fleet describes replicas for resolvers, clients and servers: the
// resolvers, the gRPC balancer and the look-aside server read the same fleet
// file and carry the same attributes.
//
// The rule. A fleet is a list of [policy.Attributes]. It comes from a YAML file,
//
//	replicas:
//	- {id: a, address: "10.0.0.1:50051", zone: z1, node: n1, weight: 2, max_ongoing_requests: 64}
//	- {address: "10.0.0.2:50051", server_name: b.example, models: [m], adapters: [x], draining: true}
//
// read and followed by package fleetfile, or from a list on a command
// line or in a dial target, read by [ParseList]. In gRPC a replica is one
// endpoint made by [Endpoint]; [FromEndpoint] reads it back, and makes do with
// the address (and grpc's weight attribute) where another resolver was at work.
//
// Guarantees. What is out of bounds is refused with an error that names the field.
// A checked fleet has a valid address in every replica, and neither an id nor an
// address twice. Attributes sit on the endpoint, not on its address, so that
// changing them keeps the connection. Package admission is stricter.
//
// Names on the wire. A replica's own authority is its server_name, else its
// address; [Endpoint] puts it in Address.ServerName, which grpc-go uses both as
// the TLS name and as the :authority header of every call on that connection.
//
// Complexity. Linear in the fleet.
//
// Source: gRFC A61 for endpoints;
// experimental/balancer/weight in grpc-go for the shape of the accessors.
package fleet

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"strings"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/strict"
)

const (
	maxID    = 256
	maxRanks = 1024
)

// Authority returns a replica's own authority: its server name, else its
// address (without an IPv6 zone, which means something on this host only).
func Authority(r policy.Attributes) string {
	if r.ServerName != "" {
		return r.ServerName
	}
	host, port, err := net.SplitHostPort(r.Address)
	if err != nil {
		return r.Address
	}
	host, _, _ = strings.Cut(host, "%")
	return net.JoinHostPort(host, port)
}

// bootstrapPort is where SGLang's bootstrap server listens.
const bootstrapPort = "8998"

// Bootstrap returns where a replica's KV blocks are asked for: its kv_bootstrap, else its host with the usual port.
func Bootstrap(r policy.Attributes) string {
	if host, _, err := net.SplitHostPort(r.Address); r.KVBootstrap == "" && err == nil {
		return net.JoinHostPort(host, bootstrapPort)
	}
	return r.KVBootstrap
}

// ParseList reads a fleet written in one line: entries separated by commas, each
// host:port or id=host:port.
func ParseList(list string) ([]policy.Attributes, error) {
	entries := strings.Split(list, ",")
	fleet := make([]policy.Attributes, len(entries))
	for i, entry := range entries {
		entry = strings.TrimSpace(entry)
		entries[i] = entry
		if entry == "" {
			return nil, fmt.Errorf("entry %d is empty; want host:port", i+1)
		}
		// An address has no "=", an id may.
		if eq := strings.LastIndexByte(entry, '='); eq >= 0 {
			if eq == 0 {
				return nil, fmt.Errorf("entry %d (%q): the id before = is empty", i+1, entry)
			}
			fleet[i].ID = entry[:eq]
			entry = entry[eq+1:]
		}
		fleet[i].Address = entry
	}
	entry := func(i int) string { return fmt.Sprintf("entry %d", i+1) }
	if i, err := Check(fleet, entry); err != nil {
		return nil, fmt.Errorf("%s (%q): %w", entry(i), entries[i], err)
	}
	return fleet, nil
}

// Check fills in the defaults of a fleet, and refuses what is out of bounds or there twice. It returns the place of the
// replica at fault, and an error that names the field; entry names a replica in errors.
func Check(fleet []policy.Attributes, entry func(i int) string) (at int, err error) {
	ids, addresses := make(map[string]int, len(fleet)), make(map[string]int, len(fleet))
	for i := range fleet {
		r := &fleet[i]
		if err := Settle(r); err != nil {
			return i, err
		}
		// The address first: where ids default to it, it is the better name.
		key := addressKey(r.Address)
		if j, dup := addresses[key]; dup {
			return i, fmt.Errorf("address: %s is already the address of %s", r.Address, entry(j))
		}
		if j, dup := ids[r.ID]; dup {
			return i, fmt.Errorf("id: %q is already the id of %s", r.ID, entry(j))
		}
		addresses[key], ids[r.ID] = i, i
	}
	return 0, nil
}

// Settle checks a replica, and fills in its defaults. The error names the field at fault. A kv_events that cannot be
// understood is none: the replica can be used, and where it comes from elsewhere than a file or a list its sender may
// be newer.
func Settle(r *policy.Attributes) error {
	r.ID = cmp.Or(r.ID, r.Address)
	if r.Role == "both" {
		r.Role = ""
	}
	return cmp.Or(
		strict.In("address: ", checkAddress(r.Address)),
		strict.In("id: ", checkID(r.ID)),
		strict.In("server_name: ", checkServerName(r.ServerName)),
		strict.Want(r.Weight >= 0 && !math.IsInf(r.Weight, 0),
			"weight: %v is not a finite number of at least 0", r.Weight),
		strict.Want(r.MaxOngoing >= 0, "max_ongoing_requests: %d is less than 0", r.MaxOngoing),
		strict.Within("ranks", r.Ranks, 0, maxRanks),
		strict.Want(r.KVEventsReplay == "" || r.KVEvents != "", "kv_events_replay: there is no kv_events"),
		strict.Want(len(r.Instance) <= maxID, "instance: longer than %d bytes", maxID),
		strict.Want(r.Role == "" || r.Role == policy.RolePrefill || r.Role == policy.RoleDecode,
			"role: %.20q is unknown; want prefill, decode or both", r.Role),
		strict.In("pair: ", checkID(r.Pair)),
		strict.In("kv_bootstrap: ", checkAddress(Bootstrap(*r))),
		strict.In("kv_engine_id: ", checkID(r.KVEngineID)),
		strict.In("models: ", checkNames(r.Models)),
		strict.In("adapters: ", checkNames(r.Adapters)),
	)
}
