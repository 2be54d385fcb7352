package fleet

import (
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/eventsource"
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

// Parse reads a fleet from JSON, the object of a fleet file. "replicas": [] is a fleet of no replica; an object without
// replicas is an error, since that is what a file looks like while it is being written.
func Parse(text []byte) ([]policy.Attributes, error) {
	var file struct {
		Replicas []policy.Attributes `json:"replicas"`
	}
	if err := strict.Decode(text, &file); err != nil {
		return nil, err
	}
	fleet := file.Replicas
	if fleet == nil {
		return nil, errors.New("replicas: missing")
	}
	err := admit(fleet, func(i int, field string) string {
		return fmt.Sprintf("replicas[%d].%s", i, field)
	}, func(i int) string {
		return fmt.Sprintf("replicas[%d]", i)
	})
	if err != nil {
		return nil, err
	}
	return fleet, nil
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
	err := admit(fleet, func(i int, field string) string {
		return fmt.Sprintf("entry %d (%q): %s", i+1, entries[i], field)
	}, func(i int) string {
		return fmt.Sprintf("entry %d", i+1)
	})
	if err != nil {
		return nil, err
	}
	return fleet, nil
}

// admit fills in defaults and refuses what is out of bounds or there twice.
// field and entry name things in errors.
func admit(fleet []policy.Attributes, field func(i int, name string) string, entry func(i int) string) error {
	ids := make(map[string]int, len(fleet))
	addresses := make(map[string]int, len(fleet))
	for i := range fleet {
		r := &fleet[i]
		if name, err := settle(r); err != nil {
			return fmt.Errorf("%s: %w", field(i, name), err)
		}
		if r.KVEvents != "" {
			if _, name, err := eventsource.ParseFields(r.KVEvents, r.KVEventsReplay, r.Ranks); err != nil {
				return fmt.Errorf("%s: %w", field(i, name), err)
			}
		}
		// The address first: where ids default to it, it is the better name.
		key := addressKey(r.Address)
		if j, dup := addresses[key]; dup {
			return fmt.Errorf("%s: %s is already the address of %s", field(i, "address"), r.Address, entry(j))
		}
		if j, dup := ids[r.ID]; dup {
			return fmt.Errorf("%s: %q is already the id of %s", field(i, "id"), r.ID, entry(j))
		}
		addresses[key], ids[r.ID] = i, i
	}
	return eventsource.CheckListeners(fleet)
}

// Admit is as strict about one replica as a fleet file, and fills in its defaults. The error begins with the field at
// fault.
func Admit(r *policy.Attributes) error {
	fleet := []policy.Attributes{*r}
	err := admit(fleet, func(_ int, name string) string { return name }, func(int) string { return "" })
	*r = fleet[0]
	return err
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
	if r.Address == "" {
		return "address", errors.New("missing; want host:port")
	}
	if err := checkAddress(r.Address); err != nil {
		return "address", err
	}
	if r.ID == "" {
		r.ID = r.Address
	}
	if err := checkID(r.ID); err != nil {
		return "id", err
	}
	if r.ServerName != "" {
		if err := checkServerName(r.ServerName); err != nil {
			return "server_name", err
		}
	}
	if !(r.Weight >= 0) || math.IsInf(r.Weight, 0) {
		return "weight", fmt.Errorf("%v is not a finite number of at least 0", r.Weight)
	}
	if r.MaxOngoing < 0 {
		return "max_ongoing_requests", fmt.Errorf("%d is less than 0", r.MaxOngoing)
	}
	if r.Ranks < 0 || r.Ranks > maxRanks {
		return "ranks", fmt.Errorf("%d is not between 0 and %d", r.Ranks, maxRanks)
	}
	if r.KVEventsReplay != "" && r.KVEvents == "" {
		return "kv_events_replay", errors.New("there is no kv_events")
	}
	if len(r.Instance) > maxID {
		return "instance", fmt.Errorf("longer than %d bytes", maxID)
	}
	if i := slices.Index(r.Models, ""); i >= 0 {
		return "models", fmt.Errorf("name %d is empty", i+1)
	}
	if i := slices.Index(r.Adapters, ""); i >= 0 {
		return "adapters", fmt.Errorf("name %d is empty", i+1)
	}
	return "", nil
}
