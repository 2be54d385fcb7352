package kubernetes

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
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A service is a target's Service and port.
type service struct {
	name, namespace string // namespace "" = the pod's own
	port            string // the pods' number, or the name of the Service's
	pods            string // selector of the pods whose declarations count; "" = they do not
}

// String names the Service in errors.
func (s service) String() string { return fmt.Sprintf("service %s/%s", s.namespace, s.name) }

// parseService reads a target like warmpath-kubernetes:///service.namespace:port?pods=selector.
func parseService(u url.URL) (query, error) {
	name, namespace, port, err := parseName(u)
	if err != nil {
		return nil, err
	}
	s := service{name: name, namespace: namespace, port: port}
	selector, asked := strings.CutPrefix(u.RawQuery, "pods=")
	s.pods, err = url.QueryUnescape(selector)
	if _, wrong := labels.Parse(s.pods); err == nil {
		err = wrong
	}
	if asked == (s.pods == "") || !asked && u.RawQuery != "" || u.ForceQuery {
		err = errors.New("want ?pods=SELECTOR or no query")
	}
	if n, wrong := strconv.Atoi(port); port == "" || wrong == nil && (n < 1 || n > 65535) {
		err = fmt.Errorf("want the number of a port of the pods, or the name of the Service's, like %s:///%s:grpc",
			u.Scheme, name)
	}
	if strings.Contains(name, ".") {
		err = fmt.Errorf("want service.namespace, not a DNS name, like %s:///chat.default:grpc", u.Scheme)
	}
	if err != nil {
		return nil, fmt.Errorf("%q: %w", u.String(), err)
	}
	return s, nil
}

// begin follows the Service's EndpointSlices, and its pods where their declarations count.
func (s service) begin(f *follower) func(time.Time) reading {
	s.namespace = cmp.Or(s.namespace, f.namespace)
	slices := following[*discoveryv1.EndpointSlice](f, collection{
		group: discoveryv1.SchemeGroupVersion, types: discoveryv1.AddToScheme, resource: "endpointslices",
		example: &discoveryv1.EndpointSlice{}, namespace: s.namespace, labels: discoveryv1.LabelServiceName + "=" + s.name,
	})
	var pods *objects[*corev1.Pod]
	if s.pods != "" {
		pods = following[*corev1.Pod](f, podsOf(s.namespace, s.pods))
	}
	u := newUnion(s)
	return func(now time.Time) (r reading) {
		r.fleet, r.until, r.err = u.replicas(slices.all(), now)
		if pods != nil {
			r.wrong = declareAll(r.fleet, pods.all())
		}
		return r
	}
}

// declareAll adds what pods declare to the replicas of a Service.
func declareAll(fleet []policy.Attributes, pods []*corev1.Pod) (wrong []string) {
	byName := make(map[string]*corev1.Pod, len(pods))
	for _, p := range pods {
		byName[p.Name] = p
	}
	for i := range fleet {
		if p := byName[fleet[i].ID]; p != nil {
			wrong = append(wrong, declare(&fleet[i], &p.ObjectMeta)...)
		}
	}
	return wrong
}

// hold is how long an endpoint stays that has left all slices without having been terminating. A controller that moves
// an endpoint to another slice writes two objects, with milliseconds between them. A pause before each update instead
// would delay replicas that are new, and still be too short where a third slice changes meanwhile. Only tests change it.
var hold = time.Second

// A union is what all EndpointSlices of a Service hold together.
type union struct {
	service service
	known   map[endpointKey]*endpoint // of the last round, with those that are held
}

// An endpointKey is the same in every slice that has the endpoint.
type endpointKey struct {
	uid    types.UID // the pod's; "" without a pod
	host   string    // "" with a pod
	family discoveryv1.AddressType
}

// A condition is the state of an endpoint. Where two slices have it, one of them is old and the greater condition
// counts: what terminates does not come back, and otherwise no moment has fewer replicas than there are.
type condition int

const (
	notReady condition = iota
	ready
	draining // it terminates and serves
	absent   // it terminates and serves no more
)

// preference is the order in which conditions claim an id or an address.
var preference = [...]int{ready: 0, draining: 1, notReady: 2, absent: 3}

// An endpoint is one of the union.
type endpoint struct {
	policy.Attributes
	key       endpointKey
	condition condition
	until     time.Time // the end of its hold; zero = a slice has it
	used      bool      // it was among the replicas
}

func newUnion(s service) *union { return &union{service: s} }

// replicas returns the fleet of the slices, nil where there is no slice, and until when part of it is held; zero =
// nothing is.
func (u *union) replicas(all []*discoveryv1.EndpointSlice, now time.Time) ([]policy.Attributes, time.Time, error) {
	if len(all) == 0 {
		err := fmt.Errorf("there is no EndpointSlice of %v: it does not exist, or it has no selector", u.service)
		return nil, time.Time{}, err
	}
	found, err := u.collect(all)
	until := u.keep(found, now)
	fleet := u.choose(found)
	u.known = found
	switch {
	case len(fleet) > 0:
		err = nil // a slice without the port is there while a Service's ports change
	case err == nil:
		err = fmt.Errorf("%v has no endpoint that serves", u.service)
	}
	return fleet, until, err
}

// collect returns the endpoints of all slices that have the port.
func (u *union) collect(all []*discoveryv1.EndpointSlice) (found map[endpointKey]*endpoint, wrong error) {
	found = make(map[endpointKey]*endpoint, len(u.known))
	for _, slice := range all {
		port, err := u.service.find(slice.Ports)
		if err != nil {
			wrong = err
			continue
		}
		for _, e := range slice.Endpoints {
			x := read(e, slice.AddressType, port)
			if was := u.known[x.key]; was != nil {
				x.used = was.used
			}
			if twin := found[x.key]; twin != nil {
				x.condition = max(x.condition, twin.condition)
			}
			found[x.key] = x
		}
	}
	return found, wrong
}

// find returns the port of the pods.
func (s service) find(ports []discoveryv1.EndpointPort) (string, error) {
	if _, err := strconv.Atoi(s.port); err == nil && len(ports) == 0 {
		return s.port, nil // a headless Service need not list its ports
	}
	var others []string
	for _, p := range ports {
		number, name := strconv.Itoa(int(ptr.Deref(p.Port, 0))), ptr.Deref(p.Name, "")
		if tcp := p.Protocol == nil || *p.Protocol == corev1.ProtocolTCP; tcp && (s.port == number || s.port == name) {
			return number, nil
		}
		others = append(others, strings.TrimPrefix(name+" "+number, " "))
	}
	return "", fmt.Errorf("%v: its pods have no port %s; they have: %s", s, s.port, strings.Join(others, ", "))
}

// read returns an endpoint of a slice. The API server admits none without an address.
func read(e discoveryv1.Endpoint, family discoveryv1.AddressType, port string) *endpoint {
	host := e.Addresses[0]
	x := &endpoint{key: endpointKey{host: host, family: family}, condition: conditionOf(e.Conditions)}
	x.Address = net.JoinHostPort(host, port)
	x.ID, x.Zone, x.Node = x.Address, ptr.Deref(e.Zone, ""), ptr.Deref(e.NodeName, "")
	if ref := e.TargetRef; ref != nil && ref.UID != "" {
		x.key.uid, x.key.host = ref.UID, ""
		x.ID, x.Instance = cmp.Or(ref.Name, x.ID), string(ref.UID)
	}
	return x
}

func conditionOf(c discoveryv1.EndpointConditions) condition {
	isReady := ptr.Deref(c.Ready, true)
	serving := ptr.Deref(c.Serving, isReady)
	switch terminating := ptr.Deref(c.Terminating, false); {
	case terminating && serving:
		return draining
	case terminating:
		return absent
	case isReady:
		return ready
	}
	return notReady
}

// keep adds the endpoints that are held, and returns when the first of these holds ends. One whose id or address
// another pod has is not held: its successor is there.
func (u *union) keep(found map[endpointKey]*endpoint, now time.Time) (first time.Time) {
	owners := make(map[string]types.UID, 2*len(found))
	for _, x := range found {
		owners[x.ID], owners[x.Address] = x.key.uid, x.key.uid
	}
	for key, x := range u.known {
		if found[key] != nil || !x.used || x.condition != ready ||
			cmp.Or(owners[x.ID], key.uid) != key.uid || cmp.Or(owners[x.Address], key.uid) != key.uid {
			continue
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
func (u *union) choose(found map[endpointKey]*endpoint) []policy.Attributes {
	best := slices.SortedFunc(maps.Values(found), func(a, b *endpoint) int {
		return cmp.Or(cmp.Compare(preference[a.condition], preference[b.condition]),
			cmp.Compare(a.key.family, b.key.family), cmp.Compare(a.key.uid, b.key.uid))
	})
	fleet := make([]policy.Attributes, 0, len(best))
	taken := make(map[string]bool, 2*len(best))
	for _, x := range best {
		serves := x.condition == ready || x.condition == draining
		serves = serves || x.condition == notReady && x.used && best[0].condition == notReady
		if x.used = serves && !taken[x.ID] && !taken[x.Address]; x.used {
			taken[x.ID], taken[x.Address] = true, true
			x.Draining = x.condition == draining
			fleet = append(fleet, x.Attributes)
		}
	}
	slices.SortFunc(fleet, func(a, b policy.Attributes) int { return strings.Compare(a.ID, b.ID) })
	return fleet
}
