package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A service is a Service's port.
type service struct {
	name, namespace string // namespace "" = the pod's own
	port            string // number or name
}

// parseService reads a target like warmpath-kubernetes:///service.namespace:port.
func parseService(u url.URL) (query, error) {
	name, namespace, port, err := parseName(u)
	if err != nil {
		return nil, err
	}
	if u.RawQuery != "" || u.ForceQuery {
		return nil, fmt.Errorf("%q: a query has no meaning here", u.String())
	}
	number, err := strconv.Atoi(port)
	if port == "" || err == nil && (number < 1 || number > 65535) {
		return nil, fmt.Errorf("%q: want a port of the pods, by number or by name, like %s:///%s:grpc",
			u.String(), u.Scheme, name)
	}
	return service{name: name, namespace: namespace, port: port}, nil
}

// follow follows the Service's EndpointSlices.
func (s service) follow(ctx context.Context, c *cluster, publish func([]policy.Attributes, error)) {
	s.namespace = cmp.Or(s.namespace, c.namespace)
	wake := make(chan struct{}, 1)
	slices := newObjects[*discoveryv1.EndpointSlice](wake)
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() {
		c.follow(ctx, collection{
			group: discoveryv1.SchemeGroupVersion, types: discoveryv1.AddToScheme, resource: "endpointslices",
			example: &discoveryv1.EndpointSlice{}, namespace: s.namespace, labels: discoveryv1.LabelServiceName + "=" + s.name,
		}, slices)
	})
	u := newUnion(s)
	held := time.NewTimer(0)
	defer held.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-held.C:
		}
		all, synced, failed := slices.now()
		if !synced {
			if failed != nil {
				publish(nil, failed)
			}
			continue
		}
		now := time.Now()
		fleet, until, err := u.replicas(all, now)
		if !until.IsZero() {
			held.Reset(until.Sub(now))
		}
		publish(fleet, cmp.Or(failed, err))
	}
}

// String names the Service in errors.
func (s service) String() string { return fmt.Sprintf("service %s/%s", s.namespace, s.name) }
