package kubernetes

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
