// Package xds tests the policy under xDS, against a management server built from go-control-plane. It is a separate
// module because of the dependencies.
package xds

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	xdstype "github.com/cncf/xds/go/xds/type/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/router"
)

const (
	node     = "test-node"
	listener = "service"
)

type replica struct {
	testpb.UnimplementedTestServiceServer
	addr   string
	broken atomic.Bool
	calls  atomic.Int64
}

func (r *replica) UnaryCall(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	r.calls.Add(1)
	if r.broken.Load() {
		return nil, status.Error(codes.Internal, "broken")
	}
	return &testpb.SimpleResponse{Username: r.addr}, nil
}

func (r *replica) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	return s.Send(&testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: []byte(r.addr)}})
}

func serve(t *testing.T, s *grpc.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

func replicas(t *testing.T, n int) []*replica {
	t.Helper()
	rs := make([]*replica, n)
	for i := range rs {
		rs[i] = &replica{}
		s := grpc.NewServer()
		testpb.RegisterTestServiceServer(s, rs[i])
		rs[i].addr = serve(t, s)
	}
	return rs
}

func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	require.NoError(t, err)
	return a
}

// control is a management server.
type control struct {
	addr    string
	cache   cachev3.SnapshotCache
	version int
}

func manage(t *testing.T) *control {
	t.Helper()
	c := &control{cache: cachev3.NewSnapshotCache(true, cachev3.IDHash{}, nil)}
	s := grpc.NewServer()
	ctx, cancel := context.WithCancel(context.Background())
	discovery.RegisterAggregatedDiscoveryServiceServer(s, serverv3.NewServer(ctx, c.cache, nil))
	c.addr = serve(t, s)
	t.Cleanup(cancel)
	return c
}

// publish announces a cluster for each group of replicas, with the policy config, and a route that splits calls
// evenly among the clusters.
func (c *control) publish(t *testing.T, config map[string]value, outliers *clusterv3.OutlierDetection, groups ...[]*replica) {
	t.Helper()
	fields, err := structpb.NewStruct(config)
	require.NoError(t, err)
	var clusters, loads []types.Resource
	var shares []*routev3.WeightedCluster_ClusterWeight
	for i, rs := range groups {
		name := fmt.Sprint("cluster-", i)
		clusters = append(clusters, &clusterv3.Cluster{
			Name:                 name,
			ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
			EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads()},
			OutlierDetection:     outliers,
			LoadBalancingPolicy: &clusterv3.LoadBalancingPolicy{Policies: []*clusterv3.LoadBalancingPolicy_Policy{{
				TypedExtensionConfig: &corev3.TypedExtensionConfig{
					Name: "warmpath",
					// gRFC A52: the last segment is the name of the policy.
					TypedConfig: pack(t, &xdstype.TypedStruct{TypeUrl: "type.googleapis.com/warmpath", Value: fields}),
				},
			}}},
		})
		loads = append(loads, &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
			Locality:            &corev3.Locality{Region: "r", Zone: "z"},
			LoadBalancingWeight: wrapperspb.UInt32(1),
			LbEndpoints:         endpoints(t, rs),
		}}})
		shares = append(shares, &routev3.WeightedCluster_ClusterWeight{Name: name, Weight: wrapperspb.UInt32(1)})
	}
	route := &routev3.RouteConfiguration{Name: "route", VirtualHosts: []*routev3.VirtualHost{{
		Name: "all", Domains: []string{"*"}, Routes: []*routev3.Route{{
			Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: ""}},
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_WeightedClusters{
				WeightedClusters: &routev3.WeightedCluster{Clusters: shares}}}},
		}},
	}}}
	hcm := pack(t, &hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: route},
		HttpFilters: []*hcmv3.HttpFilter{{Name: "router",
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(t, &routerv3.Router{})}}},
	})
	c.version++
	snapshot, err := cachev3.NewSnapshot(fmt.Sprint(c.version), map[resourcev3.Type][]types.Resource{
		resourcev3.ListenerType: {&listenerv3.Listener{Name: listener, ApiListener: &listenerv3.ApiListener{ApiListener: hcm}}},
		resourcev3.ClusterType:  clusters,
		resourcev3.EndpointType: loads,
	})
	require.NoError(t, err)
	require.NoError(t, c.cache.SetSnapshot(context.Background(), node, snapshot))
}

func endpoints(t *testing.T, rs []*replica) (list []*endpointv3.LbEndpoint) {
	t.Helper()
	for _, r := range rs {
		addr, err := net.ResolveTCPAddr("tcp", r.addr)
		require.NoError(t, err)
		list = append(list, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: addr.IP.String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(addr.Port)}}}},
		}}})
	}
	return list
}

type value = any

func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}
}

// resolver is grpc's own resolver for xds targets, configured with the management server's address.
func (c *control) resolver(t *testing.T) grpc.DialOption {
	t.Helper()
	b, err := xds.NewXDSResolverWithConfigForTesting([]byte(fmt.Sprintf(`{
		"xds_servers":[{"server_uri":%q,"channel_creds":[{"type":"insecure"}],"server_features":["xds_v3"]}],
		"node":{"id":%q}}`, c.addr, node)))
	require.NoError(t, err)
	return grpc.WithResolvers(b)
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// homes returns the replica that consistent_hash picks for a session, from the core and without a socket.
func homes(t *testing.T, rs []*replica) func(session string) string {
	t.Helper()
	c, err := policy.ParseConfig([]byte(`{"policy":{"consistent_hash":{}}}`))
	require.NoError(t, err)
	r, err := router.FromConfig(c, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	var members []router.Member
	for _, rep := range rs {
		members = append(members, router.Member{Attributes: policy.Attributes{ID: rep.addr, Address: rep.addr}})
	}
	r.Fleet.Set(members)
	for _, m := range members {
		r.Fleet.SetConnected(m.ID, true)
	}
	return func(session string) string {
		var b router.Reservation
		require.NoError(t, r.Reserve(context.Background(), &policy.Request{Session: session}, &b, router.How{NoWait: true}))
		defer b.Release()
		return b.Decision.Replica.ID
	}
}

// met waits until every replica is connected.
func met(t *testing.T, stub testpb.TestServiceClient, rs []*replica) {
	t.Helper()
	for _, r := range rs {
		require.Eventually(t, func() bool {
			reply, err := stub.UnaryCall(client.WithPin(deadline(t), r.addr), &testpb.SimpleRequest{})
			return err == nil && reply.Username == r.addr
		}, time.Minute, 5*time.Millisecond, r.addr)
	}
}

func TestConsistentHash(t *testing.T) {
	rs := replicas(t, 4)
	c := manage(t)
	c.publish(t, map[string]value{"policy": map[string]value{"consistent_hash": map[string]value{}}}, nil, rs)
	home := homes(t, rs)

	// Without interceptors, by metadata.
	bare, err := grpc.NewClient("xds:///"+listener, grpc.WithTransportCredentials(insecure.NewCredentials()), c.resolver(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, bare.Close()) }()
	met(t, testpb.NewTestServiceClient(bare), rs)
	// With them.
	cc, err := client.New("xds:///"+listener, grpc.WithTransportCredentials(insecure.NewCredentials()), c.resolver(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	met(t, testpb.NewTestServiceClient(cc), rs)
	used := map[string]bool{}
	for i := range 30 {
		s := fmt.Sprint("user ", i)
		reply, err := testpb.NewTestServiceClient(bare).UnaryCall(metadata.AppendToOutgoingContext(deadline(t), "session_id", s), &testpb.SimpleRequest{})
		require.NoError(t, err)
		require.Equal(t, home(s), reply.Username)
		var d client.Decision
		stream, err := testpb.NewTestServiceClient(cc).StreamingOutputCall(client.WithDecision(client.WithSession(deadline(t), s), &d), &testpb.StreamingOutputCallRequest{})
		require.NoError(t, err)
		m, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, home(s), string(m.Payload.Body))
		require.Equal(t, policy.ReasonRing, d.Reason)
		used[reply.Username] = true
	}
	require.Greater(t, len(used), 2)

	// The fleet changes.
	c.publish(t, map[string]value{"policy": map[string]value{"consistent_hash": map[string]value{}}}, nil, rs[:3])
	home = homes(t, rs[:3])
	require.Eventually(t, func() bool {
		for i := range 30 {
			s := fmt.Sprint("user ", i)
			reply, err := testpb.NewTestServiceClient(cc).UnaryCall(client.WithSession(deadline(t), s), &testpb.SimpleRequest{})
			if err != nil || reply.Username != home(s) {
				return false
			}
		}
		return true
	}, time.Minute, 5*time.Millisecond)
}

func TestPrefixAffinity(t *testing.T) {
	rs := replicas(t, 4)
	c := manage(t)
	c.publish(t, map[string]value{"dialects": []value{map[string]value{
		"methods": []value{"/grpc.testing.TestService/UnaryCall"}, "prompt": "3.2"}}}, nil, rs)
	cc, err := client.New("xds:///"+listener, grpc.WithTransportCredentials(insecure.NewCredentials()), c.resolver(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	stub := testpb.NewTestServiceClient(cc)
	met(t, stub, rs)
	used := map[string]bool{}
	for i := range 20 {
		text := strings.Repeat(fmt.Sprintf("document %d. ", i), 200)
		var first string
		for turn := range 3 {
			var d client.Decision
			reply, err := stub.UnaryCall(client.WithDecision(deadline(t), &d), &testpb.SimpleRequest{Payload: &testpb.Payload{Body: []byte(text)}})
			require.NoError(t, err)
			require.Equal(t, reply.Username, d.Replica)
			if turn == 0 {
				first = reply.Username
			} else {
				require.Equal(t, first, reply.Username)
				require.Equal(t, policy.ReasonPrefixMatch, d.Reason)
				require.Positive(t, d.MatchedTokens)
			}
			text += strings.Repeat("and so on. ", 10)
		}
		used[first] = true
	}
	require.Greater(t, len(used), 1)
}

// A bad config is refused, and the error names the field.
func TestBadConfig(t *testing.T) {
	rs := replicas(t, 1)
	c := manage(t)
	c.publish(t, map[string]value{"max_attempts": 99}, nil, rs)
	cc, err := client.New("xds:///"+listener, grpc.WithTransportCredentials(insecure.NewCredentials()), c.resolver(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	_, err = testpb.NewTestServiceClient(cc).UnaryCall(deadline(t), &testpb.SimpleRequest{})
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "max_attempts")
}

// The outlier detection that xDS puts above the policy ejects a failing replica.
func TestOutlierDetection(t *testing.T) {
	rs := replicas(t, 4)
	c := manage(t)
	c.publish(t, map[string]value{"policy": map[string]value{"round_robin": map[string]value{}}}, &clusterv3.OutlierDetection{
		Interval:                       durationpb.New(100 * time.Millisecond),
		BaseEjectionTime:               durationpb.New(time.Minute),
		MaxEjectionPercent:             wrapperspb.UInt32(50),
		FailurePercentageThreshold:     wrapperspb.UInt32(50),
		EnforcingFailurePercentage:     wrapperspb.UInt32(100),
		FailurePercentageMinimumHosts:  wrapperspb.UInt32(3),
		FailurePercentageRequestVolume: wrapperspb.UInt32(2),
	}, rs)
	cc, err := client.New("xds:///"+listener, grpc.WithTransportCredentials(insecure.NewCredentials()), c.resolver(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	stub := testpb.NewTestServiceClient(cc)
	met(t, stub, rs)
	rs[0].broken.Store(true)
	require.Eventually(t, func() bool {
		before := rs[0].calls.Load()
		for range 12 {
			_, _ = stub.UnaryCall(deadline(t), &testpb.SimpleRequest{})
		}
		return rs[0].calls.Load() == before
	}, time.Minute, 20*time.Millisecond)
}

// Two clusters in one channel are two balancers. Each decides for itself, and the interceptors leave the decision to
// it. When one is removed, the queue is back.
func TestTwoClusters(t *testing.T) {
	rs := replicas(t, 4)
	c := manage(t)
	config := map[string]value{"policy": map[string]value{"consistent_hash": map[string]value{}}, "max_ongoing_requests": 16}
	c.publish(t, config, nil, rs[:2], rs[2:])
	home := []func(string) string{homes(t, rs[:2]), homes(t, rs[2:])}
	cc, err := client.New("xds:///"+listener, grpc.WithTransportCredentials(insecure.NewCredentials()), c.resolver(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	stub := testpb.NewTestServiceClient(cc)
	require.Eventually(t, func() bool { // until all four are connected
		met := map[string]bool{}
		for i := range 64 {
			reply, err := stub.UnaryCall(client.WithSession(deadline(t), fmt.Sprint(i)), &testpb.SimpleRequest{})
			if err == nil {
				met[reply.Username] = true
			}
		}
		return len(met) == len(rs)
	}, time.Minute, 5*time.Millisecond)
	used := map[string]bool{}
	for i := range 100 {
		s := fmt.Sprint("user ", i)
		reply, err := stub.UnaryCall(client.WithSession(deadline(t), s), &testpb.SimpleRequest{})
		require.NoError(t, err)
		require.Contains(t, []string{home[0](s), home[1](s)}, reply.Username)
		used[reply.Username] = true
	}
	require.Len(t, used, len(rs))
	c.publish(t, config, nil, rs[:2])
	require.Eventually(t, func() bool {
		for i := range 20 {
			s := fmt.Sprint("user ", i)
			reply, err := stub.UnaryCall(client.WithSession(deadline(t), s), &testpb.SimpleRequest{})
			if err != nil || reply.Username != home[0](s) {
				return false
			}
		}
		return true
	}, time.Minute, 5*time.Millisecond)
}
