package kubernetes

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"

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
