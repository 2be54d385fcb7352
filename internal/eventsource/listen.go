package eventsource

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Declared returns a replica's attributes with the fleet's kv_events and kv_events_replay where it declares none, and
// with its own host and port for HOST and PORT.
func Declared(a policy.Attributes, events, replay string) policy.Attributes {
	if a.KVEvents == "" {
		a.KVEvents, a.KVEventsReplay = events, replay
	}
	host, port, _ := net.SplitHostPort(a.Address)
	if strings.Contains(host, ":") {
		host = "[" + strings.ReplaceAll(host, "%", "%25") + "]" // as in a URL
	}
	own := strings.NewReplacer("HOST", host, "PORT", port)
	a.KVEvents, a.KVEventsReplay = own.Replace(a.KVEvents), own.Replace(a.KVEventsReplay)
	return a
}

// listening is what one rank of a replica takes of a port.
type listening struct{ port, host, topic, id, address string }

// CheckListeners refuses replicas that listen on one port for KV events and cannot share it: on different addresses of
// this host, or with topics of which one begins with the other. Replicas with one address are one engine, which several
// deployments may follow. Sources that cannot be understood are left out.
func CheckListeners(fleet []policy.Attributes) error {
	var all []listening
	for _, a := range fleet {
		src, err := Parse(a)
		if err != nil || !src.Listen {
			continue
		}
		for rank := range src.Ranks {
			at, _ := src.Rank(rank)
			host, port, _ := net.SplitHostPort(at)
			all = append(all, listening{port, host, src.Topic, a.ID, a.Address})
		}
	}
	slices.SortFunc(all, func(a, b listening) int {
		return cmp.Or(cmp.Compare(a.port, b.port), cmp.Compare(a.topic, b.topic), cmp.Compare(a.address, b.address))
	})
	var outer []listening // of this port, each topic the beginning of the next
	for _, b := range all {
		if len(outer) > 0 && outer[0].port != b.port {
			outer = outer[:0]
		}
		if len(outer) > 0 && outer[0].host != b.host {
			return fmt.Errorf("kv_events of %q and %q: port %s is bound on %s and on %s",
				outer[0].id, b.id, b.port, outer[0].host, b.host)
		}
		for len(outer) > 1 && !strings.HasPrefix(b.topic, outer[len(outer)-1].topic) {
			outer = outer[:len(outer)-1]
		}
		if n := len(outer); n > 0 && outer[n-1].address != b.address && strings.HasPrefix(b.topic, outer[n-1].topic) {
			return fmt.Errorf("kv_events of %q and %q: both listen on port %s, and their topics %q and %q do not "+
				"distinguish them: give each a ?topic= of its own",
				outer[n-1].id, b.id, b.port, outer[n-1].topic, b.topic)
		}
		outer = append(outer, b)
	}
	return nil
}
