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
	// Subscribe is the full gRPC method of the stream of events.
	Subscribe string
	// Discover are the full gRPC methods of the list of sources: each is for engines that do not have the one before.
	Discover []string
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
	discoverMethods = map[string][]string{
		"vllm":       {"/vllm.KvTransfer/GetKvEventSources", "/vllm.Control/GetKvEventSources"},
		"openengine": {"/openengine.v1.Control/GetKvEventSources"},
	}
)

// Parse reads a replica's attributes. The error begins with the field at fault.
func Parse(a policy.Attributes) (Source, error) {
	src := Source{Ranks: max(a.Ranks, 1)}
	if err := src.parseEvents(a.KVEvents); err != nil {
		return Source{}, fmt.Errorf("kv_events: %q: %w", a.KVEvents, err)
	}
	if a.KVEventsReplay == "" {
		return src, nil
	}
	back := Source{Ranks: src.Ranks}
	err := back.parseZMQ(a.KVEventsReplay)
	if err == nil && (src.Address == "" || back.Listen) {
		err = errors.New("want tcp://host:port, beside a kv_events that begins with tcp://")
	}
	if err != nil {
		return Source{}, fmt.Errorf("kv_events_replay: %q: %w", a.KVEventsReplay, err)
	}
	src.Replay = back.Address
	return src, nil
}

func (s *Source) parseEvents(events string) (err error) {
	if name, ok := strings.CutPrefix(events, "grpc:"); ok {
		s.Subscribe, err = method(subscribeMethods, name)
		return err
	}
	if name, ok := strings.CutPrefix(events, "sources:"); ok {
		s.Discover, err = method(discoverMethods, name)
		return err
	}
	return s.parseZMQ(events)
}

func method[M any](of map[string]M, name string) (M, error) {
	m, ok := of[name]
	if !ok {
		return m, fmt.Errorf("%q is none of %s", name, strings.Join(slices.Sorted(maps.Keys(of)), ", "))
	}
	return m, nil
}

// parseZMQ reads a tcp:// endpoint, where every rank has a port.
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
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil || host == "" {
		return fmt.Errorf("%q is not host:port", u.Host)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("port %q is not a number from 1 to 65535", port)
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
	if rankAddress(s.Address, s.Ranks-1) == "" {
		return fmt.Errorf("%s leaves no room for %d ranks", s.Address, s.Ranks)
	}
	return nil
}

// Rank returns the addresses of a rank's sockets; an address is empty where that of rank 0 is.
func (s Source) Rank(rank int) (address, replay string) {
	return rankAddress(s.Address, rank), rankAddress(s.Replay, rank)
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

// Declared returns a replica's attributes with the fleet's kv_events and kv_events_replay where it declares none, and
// with its own host and port for HOST and PORT.
func Declared(a policy.Attributes, events, replay string) policy.Attributes {
	if a.KVEvents == "" {
		a.KVEvents, a.KVEventsReplay = events, replay
	}
	if a.KVEvents == "" && a.KVEventsReplay == "" {
		return a
	}
	host, port, _ := net.SplitHostPort(a.Address)
	if strings.Contains(host, ":") {
		host = "[" + strings.ReplaceAll(host, "%", "%25") + "]" // as in a URL
	}
	own := strings.NewReplacer("HOST", host, "PORT", port)
	a.KVEvents, a.KVEventsReplay = own.Replace(a.KVEvents), own.Replace(a.KVEventsReplay)
	return a
}
