package kvevents

import (
	"net"
	"strings"

	"github.com/warmpath/warmpath/balancer/routing"
)

const maxRanks = 1024

// hostName stands for the replica's own host.
const hostName = "HOST"

// Declared returns a replica's attributes with the fleet's kv_events and kv_events_replay where it declares none, and
// with its host for HOST.
func Declared(a routing.Attributes, events, replay string) routing.Attributes {
	if a.KVEvents == "" {
		a.KVEvents, a.KVEventsReplay = events, replay
	}
	host, _, _ := net.SplitHostPort(a.Address)
	if strings.Contains(host, ":") {
		host = "[" + strings.ReplaceAll(host, "%", "%25") + "]" // as in a URL
	}
	a.KVEvents = strings.ReplaceAll(a.KVEvents, hostName, host)
	a.KVEventsReplay = strings.ReplaceAll(a.KVEventsReplay, hostName, host)
	return a
}
