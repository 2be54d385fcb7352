// Package eventsource reads where the KV events of replicas come from, out of their attributes.
package eventsource

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A Source is where a replica's KV events come from. It is read from its attributes. kv_events is one of
//
//	tcp://10.0.0.1:5557    the engine's ZeroMQ socket; ?topic=kv takes only topics that begin so
//	tcp://*:5557           the same, where the engine connects; ?bind=10.0.0.7 listens on another address than loopback
//	grpc:vllm              SubscribeKvEvents on the replica's own connection
//	sources:vllm           GetKvEventSources on it names the ZeroMQ sockets
//
// and kv_events_replay is the tcp:// endpoint of the engine's replay socket. Both are those of rank 0: the other ranks'
// ports follow.
type Source struct {
	// Address is host:port of the engine's PUB socket, or with Listen the one where it connects. Empty where events
	// come through gRPC.
	Address string
	// Listen is true where the engine connects. Several replicas share a port if their topics differ.
	Listen bool
	// Replay is host:port of the replay socket; empty where there is none.
	Replay string
	// Topic is what topics must begin with.
	Topic string
	// Ranks is how many data-parallel ranks there are, at least 1.
	Ranks int
	// Subscribe and Discover are full gRPC methods: of the stream of events, and of the list of sources.
	Subscribe, Discover string
}

// Methods by the names that kv_events has for them.
var (
	subscribeMethods = map[string]string{
		"vllm":       "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents",
		"sglang":     "/sglang.grpc.scheduler.SglangScheduler/SubscribeKvEvents",
		"tokenspeed": "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/SubscribeKvEvents",
		"trtllm":     "/trtllm.TrtllmService/SubscribeKvEvents",
		"openengine": "/openengine.v1.Control/SubscribeKvEvents",
	}
	discoverMethods = map[string]string{
		"vllm":       "/vllm.Control/GetKvEventSources",
		"openengine": "/openengine.v1.Control/GetKvEventSources",
	}
)

// Parse reads a replica's attributes. The error begins with the field at fault.
func Parse(a policy.Attributes) (Source, error) {
	src, field, err := ParseFields(a.KVEvents, a.KVEventsReplay, a.Ranks)
	if err != nil {
		return Source{}, fmt.Errorf("%s: %w", field, err)
	}
	return src, nil
}

// ParseFields reads the fields of an entry, and names the field at fault beside the error.
func ParseFields(events, replay string, ranks int) (src Source, field string, err error) {
	src.Ranks = max(ranks, 1)
	if name, ok := strings.CutPrefix(events, "grpc:"); ok {
		src.Subscribe, err = method(subscribeMethods, name)
	} else if name, ok := strings.CutPrefix(events, "sources:"); ok {
		src.Discover, err = method(discoverMethods, name)
	} else {
		err = src.parseZMQ(events)
	}
	if err == nil {
		err = src.room(src.Address)
	}
	if err != nil {
		return Source{}, "kv_events", fmt.Errorf("%q: %w", events, err)
	}
	if replay == "" {
		return src, "", nil
	}
	var back Source
	if err = back.parseZMQ(replay); err == nil && (src.Address == "" || back.Listen) {
		err = errors.New("want tcp://host:port, beside a kv_events that begins with tcp://")
	}
	if err == nil {
		src.Replay = back.Address
		err = src.room(src.Replay)
	}
	if err != nil {
		return Source{}, "kv_events_replay", fmt.Errorf("%q: %w", replay, err)
	}
	return src, "", nil
}

// Rank returns the addresses of a rank's sockets; an address is empty where that of rank 0 is.
func (s Source) Rank(rank int) (address, replay string) {
	return rankAddress(s.Address, rank), rankAddress(s.Replay, rank)
}

// room checks that every rank has a port.
func (s Source) room(address string) error {
	if address != "" && rankAddress(address, s.Ranks-1) == "" {
		return fmt.Errorf("%s leaves no room for %d ranks", address, s.Ranks)
	}
	return nil
}

func method(of map[string]string, name string) (string, error) {
	m, ok := of[name]
	if !ok {
		return "", fmt.Errorf("%q is none of %s", name, strings.Join(slices.Sorted(maps.Keys(of)), ", "))
	}
	return m, nil
}

func (s *Source) parseZMQ(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "tcp" || u.Path != "" || u.User != nil || u.Fragment != "" {
		return errors.New("want tcp://host:port, grpc:NAME or sources:NAME")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return errors.New("what follows the ? is not topic=…")
	}
	for name := range query {
		if name != "topic" && name != "bind" {
			return fmt.Errorf("%q is neither topic nor bind", name)
		}
	}
	host, port, err := hostPort(u.Host)
	if err != nil {
		return err
	}
	s.Topic = query.Get("topic")
	if s.Listen = host == "*"; s.Listen {
		host = cmp.Or(query.Get("bind"), "127.0.0.1")
		if net.ParseIP(host) == nil {
			return fmt.Errorf("bind=%s is not an IP address", host)
		}
	} else if query.Has("bind") {
		return errors.New("bind is only for tcp://*:port")
	}
	s.Address = net.JoinHostPort(host, port)
	return nil
}

func hostPort(s string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(s)
	if err != nil {
		return "", "", fmt.Errorf("%q is not host:port", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", "", fmt.Errorf("port %q is not a number from 1 to 65535", port)
	}
	if host == "" {
		return "", "", fmt.Errorf("%q has no host", s)
	}
	return host, port, nil
}

// rankAddress is the address of a rank, whose port is so much higher; "" if there is no such port.
func rankAddress(a string, rank int) string {
	host, port, err := net.SplitHostPort(a)
	n, bad := strconv.Atoi(port)
	if err != nil || bad != nil || n+rank > 65535 {
		return ""
	}
	return net.JoinHostPort(host, strconv.Itoa(n+rank))
}
