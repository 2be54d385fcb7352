package fleet

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"strings"

	"github.com/warmpath/warmpath/balancer/policy"
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
	if i, field, err := Check(fleet, entry); err != nil {
		return nil, fmt.Errorf("%s (%q): %s: %w", entry(i), entries[i], field, err)
	}
	return fleet, nil
}

// Check fills in the defaults of a fleet, and refuses what is out of bounds or there twice. It returns the place of the
// replica at fault, and the field; entry names a replica in errors.
func Check(fleet []policy.Attributes, entry func(i int) string) (at int, field string, err error) {
	ids, addresses := make(map[string]int, len(fleet)), make(map[string]int, len(fleet))
	for i := range fleet {
		r := &fleet[i]
		if field, err := settle(r); err != nil {
			return i, field, err
		}
		// The address first: where ids default to it, it is the better name.
		key := addressKey(r.Address)
		if j, dup := addresses[key]; dup {
			return i, "address", fmt.Errorf("%s is already the address of %s", r.Address, entry(j))
		}
		if j, dup := ids[r.ID]; dup {
			return i, "id", fmt.Errorf("%q is already the id of %s", r.ID, entry(j))
		}
		addresses[key], ids[r.ID] = i, i
	}
	return 0, "", nil
}

// Settle checks a replica that came from elsewhere than a file or a list, and fills in its defaults. The error names
// the field at fault. A kv_events that cannot be understood is none: its sender may be newer, and the replica can
// be used.
func Settle(r *policy.Attributes) error {
	if field, err := settle(r); err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	return nil
}

// settle checks one replica, fills in its defaults and names the field at fault.
func settle(r *policy.Attributes) (field string, err error) {
	r.ID = cmp.Or(r.ID, r.Address)
	if r.Role == "both" {
		r.Role = ""
	}
	for _, check := range []struct {
		field string
		err   error
	}{
		{"address", checkAddress(r.Address)},
		{"id", checkID(r.ID)},
		{"server_name", checkServerName(r.ServerName)},
		{"weight", want(r.Weight >= 0 && !math.IsInf(r.Weight, 0), "%v is not a finite number of at least 0", r.Weight)},
		{"max_ongoing_requests", want(r.MaxOngoing >= 0, "%d is less than 0", r.MaxOngoing)},
		{"ranks", want(r.Ranks >= 0 && r.Ranks <= maxRanks, "%d is not between 0 and %d", r.Ranks, maxRanks)},
		{"kv_events_replay", want(r.KVEventsReplay == "" || r.KVEvents != "", "there is no kv_events")},
		{"instance", want(len(r.Instance) <= maxID, "longer than %d bytes", maxID)},
		{"role", want(r.Role == "" || r.Role == policy.RolePrefill || r.Role == policy.RoleDecode,
			"%.20q is unknown; want prefill, decode or both", r.Role)},
		{"pair", checkID(r.Pair)},
		{"kv_bootstrap", checkAddress(Bootstrap(*r))},
		{"kv_engine_id", checkID(r.KVEngineID)},
		{"models", checkNames(r.Models)},
		{"adapters", checkNames(r.Adapters)},
	} {
		if check.err != nil {
			return check.field, check.err
		}
	}
	return "", nil
}
