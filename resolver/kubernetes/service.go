package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A service is a target's Service and port.
type service struct {
	name, namespace string // namespace "" = the pod's own
	port            string // number or name
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
		err = fmt.Errorf("want a port of the pods, by number or by name, like %s:///%s:grpc", u.Scheme, name)
	}
	if err != nil {
		return nil, fmt.Errorf("%q: %w", u.String(), err)
	}
	return s, nil
}

// follow follows the Service's EndpointSlices, and its pods where their declarations count.
func (s service) follow(ctx context.Context, c *cluster, publish func([]policy.Attributes, error)) {
	s.namespace = cmp.Or(s.namespace, c.namespace)
	wake := make(chan struct{}, 1)
	slices, pods := newObjects[*discoveryv1.EndpointSlice](wake), newObjects[*corev1.Pod](wake)
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() {
		c.follow(ctx, collection{
			group: discoveryv1.SchemeGroupVersion, types: discoveryv1.AddToScheme, resource: "endpointslices",
			example: &discoveryv1.EndpointSlice{}, namespace: s.namespace,
			labels: discoveryv1.LabelServiceName + "=" + s.name,
		}, slices)
	})
	if s.pods != "" {
		following.Go(func() { c.follow(ctx, podsOf(s.namespace, s.pods), pods) })
	}
	u, held, wrong := newUnion(s), time.NewTimer(0), complaints{}
	defer held.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-held.C:
		}
		all, known, failed := slices.now()
		allPods, podsKnown, podsFailed := pods.now()
		failed = cmp.Or(failed, podsFailed)
		if !known || s.pods != "" && !podsKnown {
			if failed != nil {
				publish(nil, failed)
			}
			continue
		}
		now := time.Now()
		fleet, until, err := u.replicas(all, now)
		wrong.log(c.log, declareAll(fleet, allPods))
		if !until.IsZero() {
			held.Reset(until.Sub(now))
		}
		publish(fleet, cmp.Or(failed, err))
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
