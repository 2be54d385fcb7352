package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/warmpath/warmpath/balancer/policy"
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

// follow follows the pools and the pods of the namespace. All pods: a Role cannot grant less, and a pool that selects
// others has them at once.
func (q inferencePool) follow(ctx context.Context, c *cluster, publish func([]policy.Attributes, error)) {
	q.namespace = cmp.Or(q.namespace, c.namespace)
	wake := make(chan struct{}, 1)
	pools, pods := newObjects[*unstructured.Unstructured](wake), newObjects[*corev1.Pod](wake)
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() {
		c.follow(ctx, collection{
			group: poolVersion, resource: "inferencepools", example: &unstructured.Unstructured{}, namespace: q.namespace,
		}, pools)
	})
	following.Go(func() {
		c.follow(ctx, podsOf(q.namespace, ""), pods)
	})
	var wrong complaints
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		}
		allPools, poolsKnown, poolsErr := pools.now()
		allPods, podsKnown, podsErr := pods.now()
		failed := cmp.Or(poolsErr, podsErr)
		known := poolsKnown && podsKnown
		at := slices.IndexFunc(allPools, func(p *unstructured.Unstructured) bool { return p.GetName() == q.name })
		switch {
		case known && at >= 0:
			fleet, complaints := poolOf(allPools[at]).replicas(allPods)
			wrong.log(c.log, complaints)
			publish(fleet, failed)
		case failed != nil:
			publish(nil, failed)
		case known:
			publish(nil, fmt.Errorf("there is no InferencePool %s in namespace %s", q.name, q.namespace))
		}
	}
}

// poolVersion is the API that pools belong to.
var poolVersion = schema.GroupVersion{Group: "inference.networking.k8s.io", Version: "v1"}
