package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/eventsource"
)

// A Replica is one entry of a fleet.
type Replica struct {
	// ID is the stable name of the replica, the one that hashes and spans use.
	// Printable ASCII without blanks, at most 256 bytes. Default: the address.
	ID string `json:"id,omitempty"`
	// Address is host:port; required.
	Address string `json:"address"`
	// ServerName is the name in the replica's certificate and in the :authority
	// of its calls, with or without a port. Default: the address.
	ServerName string `json:"server_name,omitempty"`
	// Zone and Node are where the replica runs.
	Zone string `json:"zone,omitempty"`
	Node string `json:"node,omitempty"`
	// Weight is the replica's share relative to others; 0 means 1.
	Weight float64 `json:"weight,omitempty"`
	// MaxOngoingRequests is how many requests may be under way at once; 0 means
	// the balancer's max_ongoing_requests.
	MaxOngoingRequests int      `json:"max_ongoing_requests,omitempty"`
	Models             []string `json:"models,omitempty"`   // served; empty = not declared
	Adapters           []string `json:"adapters,omitempty"` // LoRA adapters loaded
	// KVEvents is where the engine publishes its KV events, KVEventsReplay where it
	// repeats those that were missed.
	KVEvents       string `json:"kv_events,omitempty"`
	KVEventsReplay string `json:"kv_events_replay,omitempty"`
	// Ranks is how many data-parallel ranks the replica has; 0 means 1.
	Ranks    int  `json:"ranks,omitempty"`
	Draining bool `json:"draining,omitempty"` // takes no new sessions
	// Instance is another one after the replica was restarted; "" = not given. At most 256 bytes.
	Instance string `json:"instance,omitempty"`
}

// fields are the names in a replica's entry of the fleet file.
var fields = []string{
	"id", "address", "server_name", "zone", "node", "weight",
	"max_ongoing_requests", "models", "adapters", "kv_events", "kv_events_replay", "ranks",
	"draining", "instance",
}

const (
	maxID    = 256
	maxRanks = 1024
)

// Attributes returns the replica as policies see it.
func (r Replica) Attributes() policy.Attributes {
	return policy.Attributes{
		ID:         r.ID,
		Address:    r.Address,
		Zone:       r.Zone,
		Node:       r.Node,
		Weight:     r.Weight,
		MaxOngoing: r.MaxOngoingRequests,
		Models:     slices.Clone(r.Models),
		Adapters:   slices.Clone(r.Adapters),
		KVEvents:   r.KVEvents,
		Draining:   r.Draining,
		Instance:   r.Instance,
		Ranks:      r.Ranks,

		KVEventsReplay: r.KVEventsReplay,
	}
}

// Authority returns the replica's own authority: its server name, else its
// address (without an IPv6 zone, which means something on this host only).
func (r Replica) Authority() string {
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
func Parse(text []byte) ([]Replica, error) {
	var file map[string]json.RawMessage
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, errors.New("want a mapping with the field replicas")
	}
	for name := range file {
		if name != "replicas" {
			return nil, fmt.Errorf("unknown field %q; the only one is replicas", name)
		}
	}
	var entries []json.RawMessage
	if err := json.Unmarshal(file["replicas"], &entries); len(file["replicas"]) > 0 && err != nil {
		return nil, errors.New("replicas: want a list")
	}
	if entries == nil {
		return nil, errors.New("replicas: missing")
	}
	fleet := make([]Replica, len(entries))
	for i, entry := range entries {
		if err := decode(entry, &fleet[i]); err != nil {
			return nil, fmt.Errorf("replicas[%d]%w", i, err)
		}
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
func ParseList(list string) ([]Replica, error) {
	entries := strings.Split(list, ",")
	fleet := make([]Replica, len(entries))
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

// decode reads one entry of the file. Its errors begin where the name of the
// entry ends.
func decode(entry json.RawMessage, r *Replica) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(entry, &keys); err != nil || keys == nil {
		return fmt.Errorf(": want a mapping, at least {address: host:port}")
	}
	for key := range keys {
		if !slices.Contains(fields, key) {
			return fmt.Errorf(": unknown field %q; the fields are %s", key, strings.Join(fields, ", "))
		}
	}
	err := json.Unmarshal(entry, r)
	if bad := (*json.UnmarshalTypeError)(nil); errors.As(err, &bad) {
		return fmt.Errorf(".%s: want %s, got %s", bad.Field, kind(bad.Type.Kind().String()), bad.Value)
	}
	if err != nil {
		return fmt.Errorf(": %w", err)
	}
	return nil
}

func kind(goName string) string {
	switch goName {
	case "string":
		return "a string (quote it)"
	case "slice":
		return "a list of strings"
	case "bool":
		return "true or false"
	case "int":
		return "a whole number"
	default:
		return "a number"
	}
}

// admit fills in defaults and refuses what is out of bounds or there twice.
// field and entry name things in errors.
func admit(fleet []Replica, field func(i int, name string) string, entry func(i int) string) error {
	ids := make(map[string]int, len(fleet))
	addresses := make(map[string]int, len(fleet))
	for i := range fleet {
		r := &fleet[i]
		if name, err := r.settle(); err != nil {
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
	all := make([]policy.Attributes, len(fleet))
	for i := range fleet {
		all[i] = fleet[i].Attributes()
	}
	return eventsource.CheckListeners(all)
}

// Settle checks a replica that came from elsewhere than a file or a list, and fills in its defaults. The error names
// the field at fault. A kv_events that cannot be understood is none: its sender may be newer, and the replica can
// be used.
func (r *Replica) Settle() error {
	if field, err := r.settle(); err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	return nil
}

// settle checks one replica, fills in its defaults and names the field at fault.
func (r *Replica) settle() (field string, err error) {
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
	if r.MaxOngoingRequests < 0 {
		return "max_ongoing_requests", fmt.Errorf("%d is less than 0", r.MaxOngoingRequests)
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
