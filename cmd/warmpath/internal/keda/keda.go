// Package keda is an external scaler of KEDA: it gives the load of a deployment as metrics to scale its replicas by.
package keda

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/cmd/warmpath/internal/keda/externalscaler"
	"github.com/warmpath/warmpath/internal/endpoint"
	"github.com/warmpath/warmpath/internal/pause"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Keys of a trigger's metadata, beside the targets.
const (
	keyDeployment = "deployment"
	// keySpeed is the prompt tokens that one replica computes in a second.
	keySpeed = "tokensPerSecond"
	// keyWork is the target of [work].
	keyWork = "workSeconds"
)

// kedaKeys are KEDA's own keys, which it sends too.
var kedaKeys = []string{
	"scalerAddress", "enableTLS", "unsafeSsl", "caCert", "tlsClientCert", "tlsClientKey", "tlsCertFile",
}

// A metric is a sum over all replicas, which KEDA compares to a target for each of them.
type metric struct {
	name  string
	value func(d *warmpathv1.DeploymentStatus, speed float64) float64
}

// metrics are what a trigger may scale by, by the key of the target.
var metrics = map[string]metric{
	keyWork:           {"warmpath-work-seconds", work},
	"waitingRequests": {"warmpath-waiting-requests", queued},
	"ongoingRequests": {"warmpath-ongoing-requests", ongoing},
}

// work is the seconds that one replica needs for all reserved prompts that are not computed yet.
func work(d *warmpathv1.DeploymentStatus, speed float64) float64 {
	return sum(d, (*warmpathv1.ReplicaStatus).GetQueuedTokens) / speed
}

func ongoing(d *warmpathv1.DeploymentStatus, _ float64) float64 {
	return sum(d, (*warmpathv1.ReplicaStatus).GetOngoing)
}

func queued(d *warmpathv1.DeploymentStatus, _ float64) float64 { return float64(d.GetQueued()) }

// sum adds up a number of all replicas.
func sum[N uint32 | uint64](d *warmpathv1.DeploymentStatus, of func(*warmpathv1.ReplicaStatus) N) (all float64) {
	for _, r := range d.GetReplicas() {
		all += float64(of(r))
	}
	return all
}

// scaler implements the service. Its errors are statuses.
type scaler struct {
	externalscaler.UnimplementedExternalScalerServer
	host  endpoint.Host
	until context.Context // ends streams
	every time.Duration   // between two looks at whether there is work
	now   func() time.Time

	mu      sync.Mutex         // guards missing
	missing map[string]missing // by the deployment
}

// missing is the picks of a deployment that found no replica.
type missing struct {
	count uint64
	last  time.Time // when count was seen to have grown
}

// recent is how long a deployment is active after a pick that found no replica: several of KEDA's polls, each 30 s.
const recent = 2 * time.Minute

// Register adds the scaler to a look-aside server. Its streams end with the context.
func Register(until context.Context, host endpoint.Host) {
	externalscaler.RegisterExternalScalerServer(host.Services(), newScaler(until, host, time.Second))
}

func newScaler(until context.Context, host endpoint.Host, every time.Duration) *scaler {
	return &scaler{host: host, until: until, every: every, now: time.Now, missing: make(map[string]missing)}
}

// parse returns the numbers of a trigger's metadata by key: the targets, and the speed.
func parse(ref *externalscaler.ScaledObjectRef) (map[string]float64, error) {
	numbers := make(map[string]float64)
	known := append(slices.Sorted(maps.Keys(metrics)), keyDeployment, keySpeed)
	for key, text := range ref.GetScalerMetadata() {
		switch {
		case key == keyDeployment || slices.Contains(kedaKeys, key):
		case slices.Contains(known, key):
			n, err := strconv.ParseFloat(text, 64)
			if err != nil || !(n >= 0.001 && n <= 1e9) {
				return nil, status.Errorf(codes.InvalidArgument, "%s: %q is not a number from 0.001 to 1000000000", key, text)
			}
			numbers[key] = n
		default:
			return nil, status.Errorf(codes.InvalidArgument, "%s: an unknown key; there are %s", key, strings.Join(known, ", "))
		}
	}
	_, works := numbers[keyWork]
	_, paced := numbers[keySpeed]
	switch {
	case works != paced:
		return nil, status.Errorf(codes.InvalidArgument, "%s and %s need each other", keyWork, keySpeed)
	case len(numbers) == 0:
		return nil, status.Errorf(codes.InvalidArgument, "no target is set; there are %s",
			strings.Join(slices.Sorted(maps.Keys(metrics)), ", "))
	}
	return numbers, nil
}

// look reads a trigger, and returns the state of its deployment.
func (s *scaler) look(ctx context.Context, ref *externalscaler.ScaledObjectRef) (
	numbers map[string]float64, d *warmpathv1.DeploymentStatus, err error) {
	if numbers, err = parse(ref); err != nil {
		return nil, nil, err
	}
	a, err := s.host.GetStatus(ctx, &warmpathv1.GetStatusRequest{Deployment: ref.GetScalerMetadata()[keyDeployment]})
	if err != nil {
		return nil, nil, err
	}
	if all := a.GetDeployments(); len(all) != 1 {
		return nil, nil, status.Errorf(codes.InvalidArgument, "%s: there are %d, name one", keyDeployment, len(all))
	}
	return numbers, a.GetDeployments()[0], nil
}

// lacks reports whether a pick of the last minutes found no replica: nothing else shows the work of a deployment that
// was scaled to zero.
func (s *scaler) lacks(d *warmpathv1.DeploymentStatus) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, now := s.missing[d.GetName()], s.now()
	for _, f := range d.GetFailures() {
		if codes.Code(f.GetCode()) == codes.Unavailable && f.GetCount() > m.count {
			m = missing{count: f.GetCount(), last: now}
		}
	}
	s.missing[d.GetName()] = m
	return m.count > 0 && now.Sub(m.last) < recent
}

// IsActive reports whether a request is under way or waits, or found no replica.
func (s *scaler) IsActive(ctx context.Context, ref *externalscaler.ScaledObjectRef) (
	*externalscaler.IsActiveResponse, error) {
	_, d, err := s.look(ctx, ref)
	if err != nil {
		return nil, err
	}
	busy := ongoing(d, 1) > 0 || work(d, 1) > 0 || d.GetQueued() > 0
	return &externalscaler.IsActiveResponse{Result: s.lacks(d) || busy}, nil
}

// StreamIsActive sends what IsActive returns, and after that its changes.
func (s *scaler) StreamIsActive(
	ref *externalscaler.ScaledObjectRef, stream grpc.ServerStreamingServer[externalscaler.IsActiveResponse],
) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(s.until, cancel)()
	var sent *externalscaler.IsActiveResponse
	for range pause.Every(ctx, s.every) {
		now, err := s.IsActive(ctx, ref)
		if err == nil && (sent == nil || now.GetResult() != sent.GetResult()) {
			sent, err = now, stream.Send(now)
		}
		if err != nil {
			return err
		}
	}
	if err := stream.Context().Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Unavailable, "the server is shutting down")
}

// GetMetricSpec returns the metrics that have a target.
func (s *scaler) GetMetricSpec(_ context.Context, ref *externalscaler.ScaledObjectRef) (
	*externalscaler.GetMetricSpecResponse, error) {
	numbers, err := parse(ref)
	if err != nil {
		return nil, err
	}
	a := new(externalscaler.GetMetricSpecResponse)
	for _, key := range slices.Sorted(maps.Keys(metrics)) {
		if target := numbers[key]; target > 0 {
			a.MetricSpecs = append(a.MetricSpecs, &externalscaler.MetricSpec{
				MetricName: metrics[key].name, TargetSizeFloat: target,
			})
		}
	}
	return a, nil
}

// GetMetrics returns the value of a metric that has a target.
func (s *scaler) GetMetrics(ctx context.Context, r *externalscaler.GetMetricsRequest) (
	*externalscaler.GetMetricsResponse, error) {
	numbers, d, err := s.look(ctx, r.GetScaledObjectRef())
	if err != nil {
		return nil, err
	}
	for key, m := range metrics {
		if m.name == r.GetMetricName() && numbers[key] > 0 {
			return &externalscaler.GetMetricsResponse{MetricValues: []*externalscaler.MetricValue{
				{MetricName: m.name, MetricValueFloat: m.value(d, numbers[keySpeed])},
			}}, nil
		}
	}
	return nil, status.Errorf(codes.InvalidArgument, "metricName: %q has no target in the metadata", r.GetMetricName())
}
