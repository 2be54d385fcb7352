package kubernetes

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/warmpath/warmpath/balancer/policy"
)

// hold is how long an endpoint stays that has left all slices without having been terminating. A controller that moves
// an endpoint to another slice writes two objects, with milliseconds between them.
const hold = time.Second

// A union is what all EndpointSlices of a Service hold together.
type union struct {
	service service
	rounds  int
	known   map[endpointKey]endpoint // of the last round, with those that are held
}

// An endpointKey is the same in every slice that has the endpoint.
type endpointKey struct {
	uid    types.UID // the pod's; "" without a pod
	host   string    // "" with a pod
	family discoveryv1.AddressType
}

// condition is the state of an endpoint, the best last.
type condition int

const (
	absent   condition = iota // it terminates and serves no more
	notReady                  // it may come back
	draining                  // it terminates and serves
	ready
)

// An endpoint is one of the union.
type endpoint struct {
	policy.Attributes
	key       endpointKey
	condition condition
	born      int       // the round in which it came
	until     time.Time // the end of its hold; zero = a slice has it
	used      bool      // it was among the replicas
}

func newUnion(s service) *union { return &union{service: s} }

// replicas returns the fleet of the slices, and until when part of it is held; zero = nothing is.
func (u *union) replicas(all []*discoveryv1.EndpointSlice, now time.Time) ([]policy.Attributes, time.Time, error) {
	u.rounds++
	found, err := u.collect(all)
	until := u.keep(found, now)
	fleet := u.choose(found)
	u.known = found
	switch {
	case len(all) == 0:
		err = fmt.Errorf("there is no EndpointSlice of %v: it does not exist, or it has no selector", u.service)
	case len(fleet) == 0 && err == nil:
		err = fmt.Errorf("%v has no endpoint that serves", u.service)
	}
	return fleet, until, err
}

// collect returns the endpoints of all slices that have the port.
func (u *union) collect(all []*discoveryv1.EndpointSlice) (map[endpointKey]endpoint, error) {
	found := make(map[endpointKey]endpoint)
	var wrong error
	for _, slice := range all {
		port, err := u.service.find(slice.Ports)
		if err != nil {
			wrong = err
			continue
		}
		for _, e := range slice.Endpoints {
			if len(e.Addresses) == 0 {
				continue
			}
			x := read(e, slice.AddressType, port)
			x.born = u.rounds
			if was, ok := u.known[x.key]; ok {
				x.born, x.used = was.born, was.used
			}
			if twin, ok := found[x.key]; ok {
				x.condition = both(x.condition, twin.condition)
			}
			found[x.key] = x
		}
	}
	if len(found) > 0 {
		wrong = nil // a slice of a Service whose ports change
	}
	return found, wrong
}

// both is the condition of an endpoint that is in two slices, one of which may be old: what terminates never comes
// back, and otherwise no moment has fewer replicas than are there.
func both(a, b condition) condition {
	if low := min(a, b); low == absent {
		return absent
	}
	if a == draining || b == draining {
		return draining
	}
	return max(a, b)
}

// find returns the port of the pods.
func (s service) find(ports []discoveryv1.EndpointPort) (string, error) {
	if _, err := strconv.Atoi(s.port); err == nil && len(ports) == 0 {
		return s.port, nil // a headless Service need not list its ports
	}
	var names []string
	for _, p := range ports {
		if p.Port == nil || p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP {
			continue
		}
		number, name := strconv.Itoa(int(*p.Port)), value(p.Name)
		if s.port == number || s.port == name {
			return number, nil
		}
		names = append(names, strings.TrimPrefix(name+" "+number, " "))
	}
	return "", fmt.Errorf("%v: its pods have no port %s; they have: %s", s, s.port, strings.Join(names, ", "))
}

// read returns an endpoint of a slice.
func read(e discoveryv1.Endpoint, family discoveryv1.AddressType, port string) endpoint {
	host := e.Addresses[0]
	x := endpoint{key: endpointKey{host: host, family: family}, condition: conditionOf(e.Conditions)}
	x.Address = net.JoinHostPort(host, port)
	x.ID, x.Zone, x.Node = x.Address, value(e.Zone), value(e.NodeName)
	if ref := e.TargetRef; ref != nil && ref.UID != "" {
		x.key.uid, x.key.host = ref.UID, ""
		x.ID, x.Instance = cmp.Or(ref.Name, x.ID), string(ref.UID)
	}
	return x
}

func conditionOf(c discoveryv1.EndpointConditions) condition {
	isReady := c.Ready == nil || *c.Ready
	serving := c.Serving == nil && isReady || value(c.Serving)
	switch terminating := value(c.Terminating); {
	case terminating && serving:
		return draining
	case terminating:
		return absent
	case isReady:
		return ready
	}
	return notReady
}

// value is what p points to, or the zero value.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// keep adds the endpoints that are held, and returns when the first of these holds ends.
func (u *union) keep(found map[endpointKey]endpoint, now time.Time) (first time.Time) {
	ids, addresses := make(map[string]bool), make(map[string]bool)
	for _, x := range found {
		ids[x.ID], addresses[x.Address] = true, true
	}
	for key, x := range u.known {
		if _, ok := found[key]; ok || !x.used || x.condition != ready {
			continue
		}
		if ids[x.ID] && key.uid != "" || addresses[x.Address] {
			continue // its successor is there
		}
		if x.until.IsZero() {
			x.until = now.Add(hold)
		}
		if !now.Before(x.until) {
			continue
		}
		found[key] = x
		if first.IsZero() || x.until.Before(first) {
			first = x.until
		}
	}
	return first
}

// choose returns the replicas among the endpoints, in the order of their ids: each id and each address once, and where
// none is ready or draining, those that were in use before they ceased to be ready.
func (u *union) choose(found map[endpointKey]endpoint) []policy.Attributes {
	least := draining
	best := make([]endpoint, 0, len(found))
	for _, x := range found {
		best = append(best, x)
	}
	slices.SortFunc(best, func(a, b endpoint) int {
		return cmp.Or(
			cmp.Compare(b.condition, a.condition), a.until.Compare(b.until), cmp.Compare(b.born, a.born),
			cmp.Compare(a.key.family, b.key.family), cmp.Compare(a.key.uid, b.key.uid))
	})
	if len(best) > 0 && best[0].condition < least {
		least = notReady
	}
	fleet := make([]policy.Attributes, 0, len(best))
	ids, addresses := make(map[string]bool, len(best)), make(map[string]bool, len(best))
	for _, x := range best {
		use := x.condition >= draining || x.condition >= least && x.used
		use = use && !ids[x.ID] && !addresses[x.Address]
		x.used = use
		found[x.key] = x
		if !use {
			continue
		}
		ids[x.ID], addresses[x.Address] = true, true
		x.Draining = x.condition == draining
		fleet = append(fleet, x.Attributes)
	}
	slices.SortFunc(fleet, func(a, b policy.Attributes) int { return strings.Compare(a.ID, b.ID) })
	return fleet
}
