package kubernetes

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/admission"
)

// An inferencePool is a target's pool.
type inferencePool struct{ name, namespace string } // namespace "" = the pod's own

// parsePool reads a target like warmpath-inferencepool:///pool.namespace.
func parsePool(u url.URL) (query, error) {
	name, namespace, port, err := parseName(u)
	if err != nil {
		return nil, err
	}
	if port != "" {
		return nil, fmt.Errorf("%q: the pool has ports of its own; want %s:///%s", u.String(), u.Scheme, name)
	}
	return inferencePool{name, namespace}, nil
}

// begin follows the pools and the pods of the namespace. All pods: a Role cannot grant less, and a pool that selects
// others has them at once.
func (q inferencePool) begin(f *follower) func(time.Time) reading {
	q.namespace = cmp.Or(q.namespace, f.namespace)
	pools := following[*unstructured.Unstructured](f, collection{
		group: poolVersion, resource: "inferencepools", example: &unstructured.Unstructured{}, namespace: q.namespace,
	})
	pods := following[*corev1.Pod](f, podsOf(q.namespace, ""))
	return func(time.Time) (r reading) {
		all := pools.all()
		at := slices.IndexFunc(all, func(p *unstructured.Unstructured) bool { return p.GetName() == q.name })
		if at < 0 {
			r.err = fmt.Errorf("there is no InferencePool %s in namespace %s", q.name, q.namespace)
			return r
		}
		r.fleet, r.wrong = poolOf(all[at]).replicas(pods.all())
		return r
	}
}

// poolVersion is the API that pools belong to.
var poolVersion = schema.GroupVersion{Group: "inference.networking.k8s.io", Version: "v1"}

// activePorts is an annotation of the Gateway API inference extension: those of the pool's target ports that serve on
// the pod. Absent = all.
const activePorts = "inference.networking.k8s.io/active-ports"

// A pool is what counts here of an InferencePool. The API's own module would bring another project's releases and
// dependencies for two fields.
type pool struct {
	selector labels.Selector
	ports    []string
}

// poolOf reads an InferencePool, whose schema the API server has checked.
func poolOf(u *unstructured.Unstructured) pool {
	selector, _, _ := unstructured.NestedStringMap(u.Object, "spec", "selector", "matchLabels")
	p := pool{selector: labels.SelectorFromSet(selector)}
	ports, _, _ := unstructured.NestedSlice(u.Object, "spec", "targetPorts")
	for _, port := range ports {
		fields, _ := port.(map[string]any)
		if role, _, _ := unstructured.NestedString(fields, "role"); role != "" && role != "Serving" {
			continue // of another use: no gateway sends requests there
		}
		number, _, _ := unstructured.NestedInt64(fields, "number")
		p.ports = append(p.ports, strconv.FormatInt(number, 10))
	}
	return p
}

// replicas returns the pool's replicas among the pods of its namespace, in their order. Each target port of a ready pod
// is a replica of its own, since a gateway sends to ip:port and load is per server. A data-parallel rank in the sense
// of [policy.Attributes] has no address: metadata chooses it behind one. A pod that is not ready can still be wrong.
func (p pool) replicas(pods []*corev1.Pod) (fleet []policy.Attributes, wrong []string) {
	// An empty selector selects no pod, as with a Service. No pod is a fleet without replicas, not nil.
	fleet = []policy.Attributes{}
	for _, pod := range pods {
		if p.selector.Empty() || !p.selector.Matches(labels.Set(pod.Labels)) || pod.Status.PodIP == "" {
			continue
		}
		own, bad := p.endpoints(pod)
		wrong = append(wrong, bad...)
		if serves(pod) {
			fleet = append(fleet, own...)
		}
	}
	return fleet, wrong
}

// endpoints returns the replicas of one pod.
func (p pool) endpoints(pod *corev1.Pod) (all []policy.Attributes, wrong []string) {
	var declared policy.Attributes // by the pod, for its first port
	active, some := pod.Annotations[activePorts]
	for i, number := range p.ports {
		address := net.JoinHostPort(pod.Status.PodIP, number)
		if i == 0 {
			declared = policy.Attributes{
				Address: address, Instance: string(pod.UID), Node: pod.Spec.NodeName,
				Zone: pod.Labels[corev1.LabelTopologyZone], Draining: pod.DeletionTimestamp != nil,
			}
			wrong = declare(&declared, &pod.ObjectMeta)
		}
		if some && !slices.Contains(names(active), number) {
			continue
		}
		a := declared
		a.ID, a.Address = pod.Name+":"+number, address
		if by := i * max(a.Ranks, 1); by > 0 && a.KVEvents != "" {
			a.KVEvents, a.KVEventsReplay = shifted(a.KVEvents, by), shifted(a.KVEventsReplay, by)
			if err := admission.Admit(&a); err != nil {
				wrong = append(wrong, fmt.Sprintf("pod %s/%s: port %s: %v", pod.Namespace, pod.Name, number, err))
				a.KVEvents, a.KVEventsReplay = "", ""
			}
		}
		all = append(all, a)
	}
	return all, wrong
}

// serves reports whether a pod is ready; one that is being deleted may do so to the end.
func serves(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// shifted returns where KV events come from with the port that is so much higher: engines number their sockets by rank,
// and a pod declares those of its first port.
func shifted(events string, by int) string {
	socket, ok := strings.CutPrefix(events, "tcp://")
	endpoint, _, _ := strings.Cut(socket, "?")
	colon := strings.LastIndexByte(endpoint, ':') + 1
	port, err := strconv.Atoi(endpoint[colon:])
	if !ok || err != nil {
		return events
	}
	return "tcp://" + endpoint[:colon] + strconv.Itoa(port+by) + strings.TrimPrefix(socket, endpoint)
}
