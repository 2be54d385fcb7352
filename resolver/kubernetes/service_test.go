package kubernetes

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/server"
)

// rollout is a workload under load whose pods are replaced, written in the order in which Kubernetes writes it.
type rollout struct {
	*lab
	load      *load
	endpoints map[string]discoveryv1.Endpoint
	places    func() []string // of the sessions
	reached   func(p *simPod) // waits until calls reach it
}

const (
	podsOfRollout = 4
	sessions      = 2000
)

func startRollout(t *testing.T, names func(i int) string) (*rollout, []*simPod) {
	l := startLab(t)
	l.grant()
	r := &rollout{lab: l, endpoints: make(map[string]discoveryv1.Endpoint)}
	pods := make([]*simPod, podsOfRollout)
	for i := range pods {
		pods[i] = l.start(names(i), fmt.Sprint("uid-", i), 10+i)
		r.endpoints[pods[i].name] = pods[i].ready()
	}
	r.update()
	ctx := l.deadline()
	stub := l.connect(l.target())
	for _, p := range pods {
		l.reached(ctx, stub, p)
	}
	r.load = l.startLoad(stub)
	r.places = func() []string {
		const callers = 8
		places := make([]string, sessions)
		var calls sync.WaitGroup
		for caller := range callers {
			calls.Go(func() {
				for i := caller; i < sessions; i += callers {
					places[i], _ = l.where(ctx, stub, fmt.Sprint("session-", i))
				}
			})
		}
		calls.Wait()
		require.NotContains(t, places, "", "a call failed")
		return places
	}
	r.reached = func(p *simPod) { l.reached(ctx, stub, p) }
	return r, pods
}

// update writes the Service's slice.
func (r *rollout) update() { r.write("chat-1", sorted(r.endpoints)...) }

// ends ends a pod: its endpoint terminates while the server takes no more calls, and then it goes.
func (r *rollout) ends(p *simPod) {
	r.endpoints[p.name] = p.ending()
	r.update()
	p.server.GracefulStop()
	delete(r.endpoints, p.name)
	r.update()
}

// moved requires that between two moments only the sessions of one pod have moved, and at most 1.1 of their share.
func (r *rollout) moved(what string, before, after []string, pod string, of int) {
	r.Helper()
	n := 0
	for session, was := range before {
		if is := after[session]; is != was {
			n++
			require.True(r, was == pod || is == pod, "%s: session %d moved from %s to %s", what, session, was, is)
		}
	}
	r.Logf("%s: %d of %d sessions moved, %.2f / %d", what, n, sessions, float64(n)*float64(of)/sessions, of)
	require.LessOrEqual(r, float64(n), 1.1*sessions/float64(of), what)
}

// starts lets the controller see a pod that starts, and waits until calls reach it.
func (r *rollout) starts(p *simPod) {
	for _, e := range []discoveryv1.Endpoint{p.pending(), p.ready()} {
		r.endpoints[p.name] = e
		r.update()
	}
	r.reached(p)
}

func (r *rollout) served() {
	r.Helper()
	calls, failed := r.load.end()
	r.Logf("%d calls", calls)
	require.Empty(r, failed)
	require.Greater(r, calls, sessions)
}

// Pods of a StatefulSet are replaced one after the other, and keep their names: so their sessions come back.
func TestRollingUpdateOfStatefulSet(t *testing.T) {
	r, pods := startRollout(t, func(i int) string { return fmt.Sprint("chat-", i) })
	first := r.places()
	for i, old := range slices.Backward(pods) {
		r.ends(old)
		r.moved("removed", first, r.places(), old.name, podsOfRollout)
		next := r.lab.start(old.name, old.uid+"-next", 20+i)
		r.starts(next)
		require.Equal(t, first, r.places(), "after the update of %s", old.name)
	}
	r.served()
}

// Pods of a Deployment have new names; a new one is ready before an old one goes.
func TestRollingUpdateOfDeployment(t *testing.T) {
	r, pods := startRollout(t, func(i int) string { return fmt.Sprintf("chat-7d4b9-%c%c", 'a'+i, 'x'-i) })
	places := r.places()
	for i, old := range pods {
		next := r.lab.start(fmt.Sprintf("chat-5c8f6-%c%c", 'k'+i, 'd'+i), fmt.Sprint("next-", i), 20+i)
		r.starts(next)
		more := r.places()
		r.moved("added", places, more, next.name, podsOfRollout+1)
		r.ends(old)
		places = r.places()
		r.moved("removed", more, places, old.name, podsOfRollout+1)
	}
	r.served()
}

// Without a Role, without the Service, and without its port there is a clear error, and the fleet as soon as all
// of them exist.
func TestWhatIsMissing(t *testing.T) {
	l := startLab(t)
	o := l.observe(l.target())
	o.failed(t, `cannot list resource "endpointslices"`)
	l.grant()
	o.failed(t, "there is no EndpointSlice of service "+l.namespace+"/chat")
	l.write("chat-1", pod("a", "uid-a", 1, no, no, no))
	o.failed(t, "service "+l.namespace+"/chat has no endpoint that serves")
	l.write("chat-1", up("a", 1))
	o.fleet(t, "a")
	l.observe("warmpath-kubernetes:///chat:http").failed(t, "its pods have no port http; they have: grpc 50051")
	l.observe("warmpath-kubernetes:///chat:50051").fleet(t, "a")
	l.remove("chat-1")
	o.failed(t, "there is no EndpointSlice")
	o.fleet(t, "a") // the last that was there
}

// The declarations of pods count where the target enables them.
func TestPodsDeclare(t *testing.T) {
	l := startLab(t)
	l.grant(`- {apiGroups: [""], resources: [pods], verbs: [list, watch]}`)
	l.do(http.MethodPost, "/api/v1/namespaces/"+l.namespace+"/pods", "", `{"metadata": {"name": "a", "labels": {"app": "chat"},
		"annotations": {"warmpath.dev/weight": "2", "warmpath.dev/kv_events": "tcp://HOST:5557"}},
		"spec": {"containers": [{"name": "engine", "image": "engine"}]}}`)
	l.write("chat-1", up("a", 1), up("b", 2))
	o := l.observe(l.target() + "?pods=app=chat")
	o.fleet(t, "a", "b")
	want := policy.Attributes{
		ID: "a", Address: "10.0.0.1:50051", Zone: "z1", Node: "n1", Instance: "uid-a", Weight: 2, KVEvents: "tcp://HOST:5557",
	}
	require.Equal(t, want, o.all()[0][0])
	l.do(http.MethodPatch, "/api/v1/namespaces/"+l.namespace+"/pods/a", "application/merge-patch+json",
		`{"metadata": {"annotations": {"warmpath.dev/weight": "3"}}}`)
	o.until(t, "another weight", func(fleets [][]policy.Attributes, _ []string) bool {
		return fleets[len(fleets)-1][0].Weight == 3
	})
}

// An API server that stops takes no replica away, and after its return the resolver has all changes at once.
func TestAPIServerStops(t *testing.T) {
	l := startLab(t)
	l.grant()
	a, b := l.start("a", "uid-a", 1), l.start("b", "uid-b", 2)
	l.write("chat-1", a.ready())
	o := l.observe(l.target())
	o.fleet(t, "a")
	ctx := l.deadline()
	stub := l.connect(l.target())
	l.reached(ctx, stub, a)
	load := l.startLoad(stub)
	l.server.Stop()
	o.failed(t, "connect: connection refused")
	late := l.observe(l.target())
	late.fleet(t, "a") // as of a channel that leaves idleness
	require.NoError(t, l.server.Start(ctx))
	l.write("chat-1", a.ready(), b.ready())
	o.fleet(t, "a", "b")
	late.fleet(t, "a", "b")
	l.reached(ctx, stub, b)
	calls, failed := load.end()
	t.Logf("%d calls", calls)
	require.Empty(t, failed)
	require.Len(t, o.all(), 2)
}

// A watch that resumes at a version which the API server no longer has ends with 410, and the fleet is listed
// again.
func TestWatchExpires(t *testing.T) {
	l := startLab(t)
	// An API server that has just started has no Roles yet: the administrator needs none.
	require.NoError(t, os.WriteFile(l.tokenFile, []byte(l.server.Token), 0o600))
	l.write("chat-1", up("a", 1))
	o := l.observe(l.target())
	o.fleet(t, "a")
	l.write("chat-1", up("a", 1), up("b", 2)) // the watch has this version
	o.fleet(t, "a", "b")
	var seen struct {
		Metadata struct{ ResourceVersion string }
	}
	require.NoError(t, l.server.Do(t.Context(), http.MethodGet, l.slices()+"/chat-1", "", nil, &seen))
	l.do(http.MethodPost, "/api/v1/namespaces/"+l.namespace+"/configmaps", "", `{"metadata": {"name": "newer"}}`)
	l.server.Stop()
	require.NoError(t, l.server.Start(l.deadline()))
	var event struct{ Object struct{ Code int } }
	require.NoError(t, l.server.Do(t.Context(), http.MethodGet,
		l.slices()+"?watch=1&timeoutSeconds=1&resourceVersion="+seen.Metadata.ResourceVersion, "", nil, &event))
	require.Equal(t, http.StatusGone, event.Object.Code)
	l.write("chat-1", up("a", 1), ends("b", 2))
	o.fleet(t, "a", "b!")
	require.Len(t, o.all(), 3)
}

// A refused token is replaced by the current one of its file. client-go reads the file once in 50 seconds.
func TestTokenRotates(t *testing.T) {
	if os.Getenv("WARMPATH_REQUIRE_ALL") == "" {
		t.Skip("it takes a minute; WARMPATH_REQUIRE_ALL runs it")
	}
	l := startLab(t)
	l.grant()
	l.write("chat-1", up("a", 1))
	old, err := l.server.NewToken(t.Context(), l.namespace, "client")
	require.NoError(t, err)
	l.do(http.MethodDelete, "/api/v1/namespaces/"+l.namespace+"/serviceaccounts/client", "", "")
	fresh, err := l.server.ServiceAccount(t.Context(), l.namespace, "client")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(l.tokenFile, []byte(old), 0o600))
	o := l.observe(l.target())
	o.failed(t, "Unauthorized")
	require.NoError(t, os.WriteFile(l.tokenFile, []byte(fresh), 0o600))
	o.fleet(t, "a")
}

// 1,000 endpoints in ten slices: endpoints that move, in either order of the two writes, and a slice that is
// replaced by another, are no change.
func TestThousandEndpoints(t *testing.T) {
	l := startLab(t)
	l.grant()
	all := make([][]discoveryv1.Endpoint, 10)
	for i := range 1000 {
		e := pod(fmt.Sprintf("pod-%03d", i), fmt.Sprint("uid-", i), 0, yes, yes, no)
		e.Addresses = []string{fmt.Sprintf("10.1.%d.%d", i/250, i%250+1)}
		all[i%10] = append(all[i%10], e)
	}
	name := func(i int) string { return fmt.Sprint("chat-", i) }
	for i := range all {
		l.write(name(i), all[i]...)
	}
	hold = time.Hour // however long the test takes from one write to the next
	t.Cleanup(func() { hold = time.Second })
	o := l.observe(l.target())
	o.until(t, "1,000 replicas", func(fleets [][]policy.Attributes, _ []string) bool {
		return len(fleets) > 0 && len(fleets[len(fleets)-1]) == 1000
	})
	complete := len(o.all())
	for i := range 10 {
		from, to := i, (i+3)%10
		moving := all[from][0]
		all[from], all[to] = all[from][1:], append(slices.Clone(all[to]), moving)
		order := []int{from, to}
		if i%2 == 1 {
			slices.Reverse(order)
		}
		for _, j := range order {
			l.write(name(j), all[j]...)
		}
	}
	l.remove(name(4))
	l.write("chat-another", all[4]...)
	all[0][0].Conditions.Ready = no
	l.write(name(0), all[0]...) // the mark that ends the test
	o.until(t, "999 replicas", func(fleets [][]policy.Attributes, _ []string) bool {
		return len(fleets[len(fleets)-1]) == 999
	})
	require.Len(t, o.all(), complete+1)
}

// A look-aside server follows the Service by its target.
func TestServerFollows(t *testing.T) {
	l := startLab(t)
	l.grant()
	a, b := l.start("a", "uid-a", 1), l.start("b", "uid-b", 2)
	l.write("chat-1", a.ready())
	config, err := server.ParseConfig(fmt.Appendf(nil, `{"allow_plaintext": true, "deployments": {"chat": {"target": %q}}}`, l.target()))
	require.NoError(t, err)
	s, err := server.New(config, server.Options{})
	require.NoError(t, err)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	t.Cleanup(func() {
		s.Close()
		<-served
	})
	stub := l.connect("warmpath://" + lis.Addr().String() + "/chat")
	ctx := l.deadline()
	l.reached(ctx, stub, a)
	l.write("chat-1", b.ready(), a.ending())
	l.reached(ctx, stub, b)
}
