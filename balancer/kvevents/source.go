package kvevents

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/balancer/routing"
)

// A Source says where a replica's events come from. It is read from its attributes. kv_events is one of
//
//	tcp://10.0.0.1:5557    the engine's ZeroMQ socket; ?topic=kv takes only topics that begin so
//	tcp://*:5557           the same, where it is the engine that connects
//	grpc:vllm              SubscribeKvEvents on the replica's own connection
//	sources:vllm           GetKvEventSources on it names the ZeroMQ sockets
//
// and kv_events_replay is the tcp:// endpoint of the engine's replay socket. Both are those of rank 0: the other ranks'
// ports follow.
type Source struct {
	// Address is host:port of the engine's PUB socket; ":port" waits there for the engine. Empty where events come
	// through gRPC.
	Address string
	// Replay is host:port of the replay socket; empty where there is none.
	Replay string
	// Topic is what topics must begin with.
	Topic string
	// Ranks is how many data-parallel ranks there are, at least 1.
	Ranks int
	// Subscribe and Discover are full gRPC methods: of the stream of events, and of the list of sources.
	Subscribe, Discover string
}

// hostName stands for the replica's own host in a config's kv_events.
const hostName = "HOST"

// Declared returns a replica's attributes with the fleet's kv_events and kv_events_replay where it declares none.
func Declared(a routing.Attributes, events, replay string) routing.Attributes {
	if a.KVEvents == "" {
		host, _, _ := net.SplitHostPort(a.Address)
		a.KVEvents = strings.ReplaceAll(events, hostName, host)
		a.KVEventsReplay = strings.ReplaceAll(replay, hostName, host)
	}
	return a
}

// ErrSource is a kv_events that cannot be understood.
var ErrSource = errors.New("kv_events")

// Methods by the names that kv_events has for them.
var (
	subscribeMethods = map[string]string{
		"vllm":       "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents",
		"sglang":     "/sglang.grpc.scheduler.SglangScheduler/SubscribeKvEvents",
		"trtllm":     "/trtllm.TrtllmService/SubscribeKvEvents",
		"openengine": openEngineSubscribe,
	}
	discoverMethods = map[string]string{
		"vllm":       "/vllm.Control/GetKvEventSources",
		"openengine": "/openengine.v1.Control/GetKvEventSources",
	}
)

const openEngineSubscribe = "/openengine.v1.Control/SubscribeKvEvents"

const maxRanks = 1024

// ParseSource reads a replica's attributes; the error wraps [ErrSource] and says what is wrong.
func ParseSource(a routing.Attributes) (Source, error) {
	src, err := parseSource(a)
	if err != nil {
		return Source{}, fmt.Errorf("%w: %w", ErrSource, err)
	}
	return src, nil
}

func parseSource(a routing.Attributes) (Source, error) {
	src := Source{Ranks: max(a.Ranks, 1)}
	var err error
	if name, ok := strings.CutPrefix(a.KVEvents, "grpc:"); ok {
		src.Subscribe, err = method(subscribeMethods, name)
	} else if name, ok := strings.CutPrefix(a.KVEvents, "sources:"); ok {
		src.Discover, err = method(discoverMethods, name)
	} else {
		src.Address, src.Topic, err = parseZMQ(a.KVEvents)
	}
	if err != nil {
		return Source{}, fmt.Errorf("%q: %w", a.KVEvents, err)
	}
	if a.KVEventsReplay != "" {
		if src.Replay, _, err = parseZMQ(a.KVEventsReplay); err == nil && (src.Address == "" || strings.HasPrefix(src.Replay, ":")) {
			err = errors.New("want tcp://host:port, beside a kv_events that begins with tcp://")
		}
		if err != nil {
			return Source{}, fmt.Errorf("kv_events_replay: %q: %w", a.KVEventsReplay, err)
		}
	}
	for _, at := range []string{src.Address, src.Replay} {
		if at != "" && rankAddress(at, src.Ranks-1) == "" {
			return Source{}, fmt.Errorf("%s leaves no room for %d ranks", at, src.Ranks)
		}
	}
	return src, nil
}

func method(of map[string]string, name string) (string, error) {
	m, ok := of[name]
	if !ok {
		return "", fmt.Errorf("%q is none of %s", name, strings.Join(slices.Sorted(maps.Keys(of)), ", "))
	}
	return m, nil
}

func parseZMQ(s string) (at, topic string, err error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "tcp" || u.Path != "" || u.User != nil || u.Fragment != "" {
		return "", "", errors.New("want tcp://host:port, grpc:NAME or sources:NAME")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "", "", errors.New("what follows the ? is not topic=…")
	}
	for name := range query {
		if name != "topic" {
			return "", "", fmt.Errorf("%q is not topic", name)
		}
	}
	at, err = address(u.Host)
	return at, query.Get("topic"), err
}

// address checks host:port; the host * becomes none.
func address(s string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", fmt.Errorf("%q is not host:port", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("port %q is not a number from 1 to 65535", port)
	}
	switch host {
	case "":
		return "", fmt.Errorf("%q has no host", s)
	case "*":
		host = ""
	}
	return net.JoinHostPort(host, port), nil
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
