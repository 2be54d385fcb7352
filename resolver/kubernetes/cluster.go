package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/warmpath/warmpath/internal/pause"
)

// A cluster is an API server with the credentials for it.
type cluster struct {
	config    *rest.Config
	client    *http.Client
	namespace string // of targets that name none
}

// connect reads the kubeconfig or the pod's service account. It connects to nothing yet.
func connect() (*cluster, error) {
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		clientcmd.NewDefaultClientConfigLoadingRules(), &clientcmd.ConfigOverrides{})
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("neither a service account nor a kubeconfig: %w", err)
	}
	config.UserAgent, config.AcceptContentTypes = "warmpath", protobufOrJSON
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(config)
	return &cluster{config: config, client: client, namespace: namespace}, err
}

// protobufOrJSON is what answers may be: custom resources have no protobuf.
const protobufOrJSON = "application/vnd.kubernetes.protobuf,application/json"

// A collection is one kind of object in a namespace.
type collection struct {
	group     schema.GroupVersion
	types     func(*runtime.Scheme) error // registers the group's types; nil = objects are unstructured
	resource  string                      // such as endpointslices
	example   runtime.Object
	namespace string
	labels    string // selector; "" = all
}

// podsOf are the pods that a selector selects; "" = all.
func podsOf(namespace, selector string) collection {
	return collection{
		group: corev1.SchemeGroupVersion, types: corev1.AddToScheme, resource: "pods", example: &corev1.Pod{},
		namespace: namespace, labels: selector,
	}
}

// trim drops what is not used of a pod: of 16 KB, 2 KB stay.
func trim(x any) (any, error) {
	if p, ok := x.(*corev1.Pod); ok {
		p.ManagedFields, p.Spec = nil, corev1.PodSpec{NodeName: p.Spec.NodeName}
	}
	return x, nil
}

// retry is how long after a failure client-go tries again, at most 0.75 s: an API server that is back has the fleet
// within two seconds. client-go's own is 30 s.
var retry = wait.Backoff{Duration: time.Second / 4, Factor: 2, Jitter: 0.5, Steps: 10, Cap: time.Second / 2}

// refusals is how many attempts in a row ended with 403.
type refusals int

// After 20 of them the Role is missing, and there is a pause before each further attempt. An API server that starts has
// no Roles yet for a moment, which is to cost no time.
const (
	maxRefusals  = 20
	refusalPause = 5 * time.Second
)

// attempt counts an attempt, and pauses where the Role is missing.
func (n *refusals) attempt(ctx context.Context, err error) {
	if *n++; !apierrors.IsForbidden(err) {
		*n = 0
	}
	if *n > maxRefusals {
		_ = pause.For(ctx, refusalPause)
	}
}

// follow keeps a store the same as a collection until the context ends, and reports the result of each attempt. Lists,
// watches, bookmarks, 410 and tokens that rotate are client-go's.
func (c *cluster) follow(ctx context.Context, what collection, store cache.ReflectorStore, report func(error)) {
	direct, err := c.direct(what)
	if err != nil {
		report(err)
		return
	}
	var refused refusals
	tried := func(err error) {
		report(err)
		refused.attempt(ctx, err)
	}
	observed := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := direct.ListWithContext(ctx, o)
			tried(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := direct.WatchWithContext(ctx, o)
			tried(err)
			return w, err
		},
	}
	silent, backoff := logr.Discard(), retry // failures are logged by the source
	options := cache.ReflectorOptions{Logger: &silent, Backoff: &backoff}
	cache.NewReflectorWithOptions(observed, what.example, store, options).RunWithContext(klog.NewContext(ctx, silent))
}

// direct lists and watches a collection. It has the types of its group alone.
func (c *cluster) direct(what collection) (*cache.ListWatch, error) {
	if what.types == nil {
		client, err := dynamic.NewForConfigAndClient(c.config, c.client)
		if err != nil {
			return nil, err
		}
		all := client.Resource(what.group.WithResource(what.resource)).Namespace(what.namespace)
		return &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return all.List(ctx, o)
			},
			WatchFuncWithContext: all.Watch,
		}, nil
	}
	scheme := runtime.NewScheme()
	if err := what.types(scheme); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(scheme, what.group)
	config := rest.CopyConfig(c.config)
	config.GroupVersion, config.APIPath = &what.group, "/apis"
	if what.group.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientForConfigAndClient(config, c.client)
	if err != nil {
		return nil, err
	}
	return cache.NewFilteredListWatchFromClient(client, what.resource, what.namespace,
		func(o *metav1.ListOptions) { o.LabelSelector = what.labels }), nil
}

// A follower follows collections until the context ends. One goroutine uses it.
type follower struct {
	*cluster
	ctx     context.Context
	wake    chan struct{} // after each change; has room for one
	running sync.WaitGroup
	states  []func() (synced bool, err error) // of the collections
}

// following returns the objects of one more collection.
func following[T metav1.Object](f *follower, what collection) *objects[T] {
	o := newObjects[T](f.wake)
	f.states = append(f.states, o.state)
	f.running.Go(func() { f.follow(f.ctx, what, o, o.tried) })
	return o
}

// state returns whether all collections were listed, and the first error among their last attempts.
func (f *follower) state() (known bool, err error) {
	known = true
	for _, state := range f.states {
		synced, failed := state()
		known, err = known && synced, cmp.Or(err, failed)
	}
	return known, err
}

// objects are those of a collection. They wake their follower after each change. A list replaces all of them at once.
type objects[T metav1.Object] struct {
	cache.Store
	wake chan<- struct{}

	mu     sync.Mutex // guards what follows
	synced bool       // there was a list
	err    error      // of the last attempt to list or to watch
}

func newObjects[T metav1.Object](wake chan<- struct{}) *objects[T] {
	return &objects[T]{Store: cache.NewStore(cache.MetaNamespaceKeyFunc, cache.WithTransformer(trim)), wake: wake}
}

// all returns the objects, in the order of their names.
func (o *objects[T]) all() (all []T) {
	for _, x := range o.List() {
		all = append(all, x.(T))
	}
	slices.SortFunc(all, func(a, b T) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all
}

// state returns whether there was a list, and what the last attempt ended with.
func (o *objects[T]) state() (synced bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.synced, o.err
}

// tried takes the result of an attempt to list or to watch.
func (o *objects[T]) tried(err error) {
	o.mu.Lock()
	o.err = err
	o.mu.Unlock()
	_ = o.changed(nil)
}

// changed wakes the follower and returns err.
func (o *objects[T]) changed(err error) error {
	select {
	case o.wake <- struct{}{}:
	default: // it has not looked yet
	}
	return err
}

// Add and the methods below implement [cache.ReflectorStore].
func (o *objects[T]) Add(x any) error    { return o.changed(o.Store.Add(x)) }
func (o *objects[T]) Update(x any) error { return o.changed(o.Store.Update(x)) }
func (o *objects[T]) Delete(x any) error { return o.changed(o.Store.Delete(x)) }
func (o *objects[T]) Replace(all []any, version string) error {
	err := o.Store.Replace(all, version)
	o.mu.Lock()
	o.synced = true
	o.mu.Unlock()
	return o.changed(err)
}
