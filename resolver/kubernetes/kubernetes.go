// Package kubernetes resolves dial targets that name a Service or an InferencePool of Kubernetes:
//
//	warmpath-kubernetes:///chat.inference:grpc     service.namespace:port, by the name of the Service's port
//	warmpath-kubernetes:///chat:50051              in the pod's own namespace
//	warmpath-kubernetes:///chat:grpc?pods=app=chat with what the pods declare that the selector selects
//	warmpath-inferencepool:///pool.inference       the pods that the pool selects, each of its ports one replica
//
// Importing it registers the schemes, for clients and for the target of a look-aside server. A number is a port of the
// pods: that of the Service may be another. In a pod the API server is reached with the service account, elsewhere with
// a kubeconfig (KUBECONFIG, ~/.kube/config). A Service wants this Role, with pods beside endpointslices where ?pods= is used:
//
//	apiVersion: rbac.authorization.k8s.io/v1
//	kind: Role
//	metadata:
//	  name: warmpath-service
//	rules:
//	- apiGroups: [discovery.k8s.io]
//	  resources: [endpointslices]
//	  verbs: [list, watch]
//
// An InferencePool wants the same for pods and for inferencepools of inference.networking.k8s.io.
//
// The rule. The fleet of a Service is the union of its EndpointSlices. A replica's id is its pod's name, so pods of a
// StatefulSet come back with their sessions; its instance is the pod's uid; without a pod, the address is the id. What
// is ready gets calls; what terminates and serves drains; anything else is no replica. An endpoint that leaves all
// slices without having been terminating stays for a second: it may be on its way to another slice.
//
// The fleet of an InferencePool is each target port of each ready pod that it selects, with the id pod:port. A pod that
// is being deleted drains while it is ready. Where no pod is ready the fleet is empty: gateways want a 503 then.
//
// Pods declare fields of a fleet file as annotations or labels, like warmpath.dev/weight: "2" or
// warmpath.dev/kv_events: "tcp://HOST:5557".
//
// Guarantees. The last fleet stays in force while the API server is away, and after the Service or the pool is deleted.
// An API server that is back is asked within 0.75 s, or within five seconds where it has answered 403 for a while: the
// Role is missing. Where no endpoint of a Service is ready any more, those that were in use stay while they exist. A
// mistake before there is a fleet fails calls with the reason. Close returns when all goroutines have ended.
//
// Complexity. A change costs a look at each endpoint of the Service, or at each pod of the pool's namespace.
//
// Source: the EndpointSlice API; client-go's reflector for lists, watches, bookmarks, 410 and tokens that rotate.
package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/pause"
	"github.com/warmpath/warmpath/internal/target"
)

func init() {
	register(target.ServiceScheme, parseService)
	register(target.PoolScheme, parsePool)
}

// register adds a scheme. A target with a mistake is an error, and so is a process that has neither a service account
// nor a kubeconfig. Nothing waits for the API server.
func register(scheme string, parse func(url.URL) (query, error)) {
	check := func(u url.URL) error {
		_, err := parse(u)
		return err
	}
	target.Register(scheme, check, func(c *target.Channel) (stop func(), err error) {
		q, err := parse(c.Target)
		if err != nil {
			return nil, err
		}
		api, err := connect()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", scheme, err)
		}
		s := &source{Channel: c, target: c.Target.String()}
		return pause.Run(func(ctx context.Context) { s.run(ctx, q, api) }), nil
	})
}

// parseName reads the path of a target, name.namespace or name with "" as namespace, and the port behind it, where
// there is one.
func parseName(u url.URL) (name, namespace, port string, err error) {
	path, isPath := strings.CutPrefix(u.Path, "/")
	if u.Host != "" || u.User != nil || u.Fragment != "" || !isPath {
		return "", "", "", fmt.Errorf("%q: want %s:///name.namespace with three slashes", u.String(), u.Scheme)
	}
	name, port, _ = strings.Cut(path, ":")
	wrong := validation.IsDNS1123Subdomain(name)
	if dot := strings.LastIndexByte(name, '.'); dot >= 0 {
		name, namespace = name[:dot], name[dot+1:]
		wrong = append(validation.IsDNS1123Subdomain(name), validation.IsDNS1123Label(namespace)...)
	}
	if wrong != nil {
		err = fmt.Errorf("%q: name %q, namespace %q: %s", u.String(), name, namespace, wrong[0])
	}
	return name, namespace, port, err
}

// A query is what a target asks for.
type query interface {
	// begin begins to follow what the query needs, and returns how it is read.
	begin(f *follower) (read func(now time.Time) reading)
}

// A reading is what the API server's objects hold together.
type reading struct {
	fleet []policy.Attributes // nil = the last one stays
	until time.Time           // when it is to be read again; zero = after a change
	wrong []string            // what pods declare and is ignored
	err   error
}

// last has the last fleet of each target: a channel that leaves idleness has it while the API server is away.
var last sync.Map

// A source is the resolver of one channel.
type source struct {
	*target.Channel
	target string

	// Of the goroutine alone.
	known bool
	fleet []policy.Attributes
	wrong string // the error that was reported last; "" = none
}

// run follows a query until the context ends.
func (s *source) run(ctx context.Context, q query, c *cluster) {
	defer c.client.CloseIdleConnections()
	f := &follower{cluster: c, ctx: ctx, wake: make(chan struct{}, 1)}
	defer f.running.Wait()
	read, again, ignored := q.begin(f), time.NewTimer(0), complaints{}
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case <-again.C:
		}
		known, err := f.state()
		if !known {
			if err != nil {
				s.publish(nil, err)
			}
			continue
		}
		now := time.Now()
		r := read(now)
		ignored.log(s.Log, r.wrong)
		if !r.until.IsZero() {
			again.Reset(r.until.Sub(now))
		}
		s.publish(r.fleet, cmp.Or(err, r.err))
	}
}

// publish takes a fleet, or nil where the last one stays, and what is wrong.
func (s *source) publish(fleet []policy.Attributes, err error) {
	if was, ok := last.Load(s.target); ok && fleet == nil && !s.known {
		fleet = was.([]policy.Attributes)
	}
	if fleet != nil && (!s.known || !slices.EqualFunc(fleet, s.fleet, policy.Attributes.Equal)) {
		s.known, s.fleet = true, fleet
		last.Store(s.target, fleet)
		s.Send(fleet)
	}
	switch was := s.wrong; {
	case err == nil && was != "":
		s.wrong = ""
		s.Log.Info("warmpath: Kubernetes is followed again", "target", s.target, "replicas", len(s.fleet))
	case err != nil && err.Error() != was:
		s.wrong = err.Error()
		s.ReportError(err)
		if was == "" {
			s.Log.Warn("warmpath: Kubernetes cannot be followed",
				"target", s.target, "replicas", len(s.fleet), "error", err)
		}
	}
}
