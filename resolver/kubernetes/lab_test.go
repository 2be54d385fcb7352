package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/apiserver"
	"github.com/warmpath/warmpath/internal/fleet"
)

// lab is a namespace of a real API server. The test writes the EndpointSlices of the Service chat as the
// controller does. The pods are gRPC servers on loopback, which the API server would not accept as addresses of
// endpoints: dial translates.
type lab struct {
	*testing.T
	server    *apiserver.Server
	namespace string
	tokenFile string

	mu      sync.Mutex        // guards what follows
	real    map[string]string // addresses on loopback by those in Kubernetes
	written map[string]bool   // slices that exist
}

// startLab makes a namespace in which a service account has the Role of the package's documentation.
func startLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{T: t, server: apiserver.Shared(t), real: make(map[string]string), written: make(map[string]bool)}
	l.namespace = "t-" + strings.ReplaceAll(strings.ToLower(t.Name()), "/", "-")
	require.NoError(t, l.server.Namespace(t.Context(), l.namespace))
	token, err := l.server.ServiceAccount(t.Context(), l.namespace, "client")
	require.NoError(t, err)
	dir := t.TempDir()
	l.tokenFile = filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(l.tokenFile, []byte(token), 0o600))
	config, err := l.server.Kubeconfig(l.tokenFile, l.namespace)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config"), config, 0o600))
	t.Setenv("KUBECONFIG", filepath.Join(dir, "config"))
	return l
}

// grant binds the Role of the package's documentation, with more rules behind it.
func (l *lab) grant(more ...string) {
	l.Helper()
	source, err := os.ReadFile("kubernetes.go")
	require.NoError(l, err)
	_, role, _ := strings.Cut(string(source), "//\tapiVersion: rbac")
	role, _, _ = strings.Cut("\tapiVersion: rbac"+role, "\n//\n")
	role = strings.ReplaceAll(strings.ReplaceAll(role, "//\t", ""), "\t", "") + "\n" + strings.Join(more, "\n")
	l.bind("warmpath-service", role)
}

// bind creates a Role and binds it to the service account.
func (l *lab) bind(name, role string) {
	l.Helper()
	rbac := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + l.namespace
	l.do(http.MethodPost, rbac+"/roles", "application/yaml", role)
	l.do(http.MethodPost, rbac+"/rolebindings", "", fmt.Sprintf(`{"metadata": {"name": %q},
		"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": %q},
		"subjects": [{"kind": "ServiceAccount", "name": "client", "namespace": %q}]}`, name, name, l.namespace))
}

func (l *lab) do(method, path, contentType, body string) {
	l.Helper()
	require.NoError(l, l.server.Do(l.Context(), method, path, contentType, []byte(body), nil))
}

// write writes a slice.
func (l *lab) write(name string, endpoints ...discoveryv1.Endpoint) {
	l.Helper()
	s := slice(endpoints...)
	s.Name, s.Namespace, s.Labels = name, l.namespace, map[string]string{discoveryv1.LabelServiceName: "chat"}
	body, err := json.Marshal(s)
	require.NoError(l, err)
	if l.written[name] {
		l.do(http.MethodPut, l.slices()+"/"+name, "", string(body))
	} else {
		l.do(http.MethodPost, l.slices(), "", string(body))
	}
	l.written[name] = true
}

func (l *lab) remove(name string) {
	l.Helper()
	l.do(http.MethodDelete, l.slices()+"/"+name, "", "")
	delete(l.written, name)
}

func (l *lab) slices() string {
	return "/apis/discovery.k8s.io/v1/namespaces/" + l.namespace + "/endpointslices"
}

// A simPod is a pod with its server.
type simPod struct {
	testpb.UnimplementedTestServiceServer
	name, uid string
	host      int
	server    *grpc.Server
}

func (p *simPod) UnaryCall(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Username: p.name, Hostname: p.uid}, nil
}

// start starts a pod with an address of its own.
func (l *lab) start(name, uid string, host int) *simPod {
	l.Helper()
	p := &simPod{name: name, uid: uid, host: host, server: grpc.NewServer()}
	testpb.RegisterTestServiceServer(p.server, p)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(l, err)
	l.mu.Lock()
	l.real[fmt.Sprintf("10.0.0.%d:50051", host)] = lis.Addr().String()
	l.mu.Unlock()
	go func() { _ = p.server.Serve(lis) }()
	l.Cleanup(p.server.Stop)
	return p
}

// Endpoints of a pod in the order in which Kubernetes writes them.
func (p *simPod) pending() discoveryv1.Endpoint { return pod(p.name, p.uid, p.host, no, no, no) }
func (p *simPod) ready() discoveryv1.Endpoint   { return pod(p.name, p.uid, p.host, yes, yes, no) }
func (p *simPod) ending() discoveryv1.Endpoint  { return pod(p.name, p.uid, p.host, no, yes, yes) }

func (l *lab) dial(ctx context.Context, address string) (net.Conn, error) {
	l.mu.Lock()
	real := l.real[address]
	l.mu.Unlock()
	return new(net.Dialer).DialContext(ctx, "tcp", cmp.Or(real, address))
}

// target is the Service's.
func (l *lab) target() string { return "warmpath-kubernetes:///chat." + l.namespace + ":grpc" }

// connect returns a client of a target.
func (l *lab) connect(target string, opts ...grpc.DialOption) testpb.TestServiceClient {
	l.Helper()
	cc, err := client.New(target, append([]grpc.DialOption{
		grpc.WithContextDialer(l.dial), grpc.WithNoProxy(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		client.WithConfig(`{"policy":{"consistent_hash":{"num_virtual_nodes":10000}},"ejection":{"slow_start":"1ms"}}`),
	}, opts...)...)
	require.NoError(l, err)
	l.Cleanup(func() { _ = cc.Close() })
	return testpb.NewTestServiceClient(cc)
}

// where returns the pod that serves a session.
func (l *lab) where(ctx context.Context, stub testpb.TestServiceClient, session string) (string, error) {
	reply, err := stub.UnaryCall(client.WithSession(ctx, session), &testpb.SimpleRequest{})
	return reply.GetUsername(), err
}

// reached waits until calls reach a pod.
func (l *lab) reached(ctx context.Context, stub testpb.TestServiceClient, p *simPod) {
	l.Helper()
	require.Eventually(l, func() bool {
		reply, err := stub.UnaryCall(client.WithPin(ctx, p.name), &testpb.SimpleRequest{})
		return err == nil && reply.Hostname == p.uid
	}, 30*time.Second, 5*time.Millisecond, "calls reach %s", p.name)
}

func (l *lab) deadline() context.Context {
	ctx, cancel := context.WithTimeout(l.Context(), 5*time.Minute)
	l.Cleanup(cancel)
	return ctx
}

// An observer is the channel of a resolver. It writes down what the resolver reports.
type observer struct {
	resolver.ClientConn
	mu     sync.Mutex // guards what follows
	fleets [][]policy.Attributes
	errs   []string
	wake   chan struct{}
}

// observe builds the resolver of a target. The end of the test closes it.
func (l *lab) observe(text string) *observer {
	l.Helper()
	o := &observer{wake: make(chan struct{}, 1)}
	u, err := url.Parse(text)
	require.NoError(l, err)
	r, err := resolver.Get(u.Scheme).Build(resolver.Target{URL: *u}, o, resolver.BuildOptions{})
	require.NoError(l, err)
	l.Cleanup(r.Close)
	return o
}

func (o *observer) note(f func()) {
	o.mu.Lock()
	f()
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *observer) UpdateState(s resolver.State) error {
	all := make([]policy.Attributes, 0, len(s.Endpoints))
	for _, ep := range s.Endpoints {
		all = append(all, fleet.FromEndpoint(ep))
	}
	o.note(func() { o.fleets = append(o.fleets, all) })
	return nil
}

func (o *observer) ReportError(err error) { o.note(func() { o.errs = append(o.errs, err.Error()) }) }

// all are the fleets so far.
func (o *observer) all() [][]policy.Attributes {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.fleets
}

// until waits for a report after which a condition holds.
func (o *observer) until(t testing.TB, what string, holds func(fleets [][]policy.Attributes, errs []string) bool) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		o.mu.Lock()
		done, fleets, errs := holds(o.fleets, o.errs), o.fleets, o.errs
		o.mu.Unlock()
		if done {
			return
		}
		select {
		case <-o.wake:
		case <-deadline:
			require.Fail(t, what, "%d fleets, the last of %v; errors: %q", len(fleets), short(slices.Concat(fleets[max(0, len(fleets)-1):]...)), errs)
		}
	}
}

// fleet waits until the last fleet is the one that is wanted, in short.
func (o *observer) fleet(t testing.TB, want ...string) {
	t.Helper()
	o.until(t, fmt.Sprint("want ", want), func(fleets [][]policy.Attributes, _ []string) bool {
		return len(fleets) > 0 && slices.Equal(short(fleets[len(fleets)-1]), want)
	})
}

// failed waits for an error with a text.
func (o *observer) failed(t testing.TB, text string) {
	t.Helper()
	o.until(t, "want an error with "+text, func(_ [][]policy.Attributes, errs []string) bool {
		return slices.ContainsFunc(errs, func(e string) bool { return strings.Contains(e, text) })
	})
}

// A load calls without a pause until it ends.
type load struct {
	stop   context.CancelFunc
	wait   sync.WaitGroup
	mu     sync.Mutex // guards what follows
	calls  int
	failed []error
}

// startLoad starts callers of any session.
func (l *lab) startLoad(stub testpb.TestServiceClient) *load {
	ctx, stop := context.WithCancel(l.Context())
	x := &load{stop: stop}
	for caller := range 2 {
		x.wait.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				_, err := stub.UnaryCall(client.WithSession(l.Context(), fmt.Sprintf("load-%d-%d", caller, i%100)), &testpb.SimpleRequest{})
				x.mu.Lock()
				x.calls++
				if err != nil {
					x.failed = append(x.failed, err)
				}
				x.mu.Unlock()
			}
		})
	}
	l.Cleanup(func() { x.end() })
	return x
}

// end ends the callers.
func (x *load) end() (calls int, failed []error) {
	x.stop()
	x.wait.Wait()
	return x.calls, x.failed
}

// sorted are the values of a map.
func sorted(m map[string]discoveryv1.Endpoint) (all []discoveryv1.Endpoint) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, m[name])
	}
	return all
}
