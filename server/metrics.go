package server

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/telemetry"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Attribute keys of the server's own metrics.
const (
	keyState = attribute.Key("warmpath.state")
	keyCode  = attribute.Key("warmpath.code")
)

// figures are what a deployment counts as a whole.
var figures = []telemetry.Figure[*deployment]{
	{Name: "warmpath.server.watchers", Unit: "{client}", Text: "Clients that watch.", Value: (*deployment).watching},
	{Name: "warmpath.server.reservations", Unit: "{pick}", Text: "Picks that add to the load, reserved or not.",
		Value: func(d *deployment) int64 { return int64(d.picks.leases.held()) }},
	{Name: "warmpath.server.peers", Unit: "{server}", Text: "Other servers of the cluster, in sync.",
		Value: func(d *deployment) (n int64) {
			for _, p := range d.clusterStatus().GetPeers() {
				if p.GetInSync() {
					n++
				}
			}
			return n
		}},
	{Name: "warmpath.server.index.superblocks", Unit: "{superblock}", Text: "Superblocks of 512 tokens in the broadcast index.",
		Value: func(d *deployment) int64 { return int64(d.hosted.Load().index.size()) }},
	{Name: "warmpath.server.reservations.expired", Unit: "{reservation}", Text: "Reservations that ended with their lease.",
		Rises: true, Value: func(d *deployment) int64 { return d.picks.leases.expired.Load() }},
	{Name: "warmpath.server.registrations.expired", Unit: "{replica}",
		Text:  "Registered replicas that were removed at the end of their lease.",
		Rises: true, Value: func(d *deployment) int64 { return d.tally.registrationsExpired.Load() }},
	{Name: "warmpath.server.polls.failed", Unit: "{poll}", Text: "Load polls without an answer.",
		Rises: true, Value: func(d *deployment) int64 { return d.tally.pollsFailed.Load() }},
	{Name: "warmpath.server.unpublished", Unit: "{message}",
		Text:  "Descriptions of replicas and updates that could not be sent to clients or other servers.",
		Rises: true, Value: func(d *deployment) int64 { return d.tally.unpublished.Load() }},
	{Name: "warmpath.server.broadcast.bytes", Unit: "By", Text: "Bytes sent to watching clients.",
		Rises: true, Value: func(d *deployment) int64 { return d.tally.sentBytes.Load() }},
	{Name: "warmpath.server.broadcast.messages", Unit: "{message}", Text: "Messages sent to watching clients.",
		Rises: true, Value: func(d *deployment) int64 { return d.tally.sentMessages.Load() }},
}

// watchMeters registers the metrics that the deployment counts by itself.
func (d *deployment) watchMeters() (stop func(), err error) {
	b := d.picks.recorder.Instruments()
	observe := telemetry.Table(b, figures)
	failed := b.Counter("warmpath.server.picks.failed", "{pick}", "Failed picks, by the gRPC status code.")
	decisions := b.Counter("warmpath.server.decisions", "{decision}",
		"Decisions of the server and of watching clients, by policy and reason.")
	tokens := b.Counter("warmpath.server.prompt_tokens", "{token}",
		"Prompt tokens of the requests that ended with usage: all, predicted to be cached, and reported as cached.")
	replicas := b.Gauge("warmpath.server.replicas", "{replica}", "Replicas by state.")
	ongoing := b.Gauge("warmpath.server.replica.ongoing", "{request}", "Requests under way on a replica.")
	queued := b.Gauge("warmpath.server.replica.queued_tokens", "{token}",
		"Uncached prompt tokens of them not yet prefilled.")
	stale := b.Gauge("warmpath.server.replica.stale", "{replica}", "1 where a replica's load rests on stale reports.")
	which := telemetry.KeyDeployment.String(d.name)
	return b.Observe(func(o metric.Observer) {
		observe(o, d)
		made, failures := d.tally.counts()
		for _, m := range made {
			o.ObserveInt64(decisions, int64(m.GetCount()), metric.WithAttributes(which,
				telemetry.KeyPolicy.String(m.GetPolicy()), telemetry.KeyReason.String(m.GetReason())))
		}
		if c, _ := d.tally.caches(""); c != nil {
			for kind, n := range map[string]uint64{"all": c.GetPrompt(), "predicted": c.GetPredicted(), "cached": c.GetMeasured()} {
				o.ObserveInt64(tokens, int64(n), metric.WithAttributes(which, keyState.String(kind)))
			}
		}
		for _, f := range failures {
			code := keyCode.String(codes.Code(f.GetCode()).String())
			o.ObserveInt64(failed, int64(f.GetCount()), metric.WithAttributes(which, code))
		}
		states := map[string]int64{
			stateReady: 0, stateFull: 0, stateEjected: 0, stateNotServing: 0, stateDraining: 0, stateDisconnected: 0,
		}
		for _, r := range d.replicaStatuses(exactView) {
			states[r.State]++
			set := metric.WithAttributes(which, telemetry.KeyReplica.String(r.GetId()))
			o.ObserveInt64(ongoing, int64(r.GetOngoing()), set)
			o.ObserveInt64(queued, int64(r.GetQueuedTokens()), set)
			o.ObserveInt64(stale, map[bool]int64{true: 1}[r.GetStale()], set)
		}
		for state, n := range states {
			o.ObserveInt64(replicas, n, metric.WithAttributes(which, keyState.String(state)))
		}
	})
}

// observe records the metrics of a Router, of its replicas' health and of their events until it is closed.
func (h *hosted) observe(r *telemetry.Recorder) error {
	stop, err := r.Watch(h.config.Policy.Name, h.router)
	if err != nil {
		return err
	}
	h.unwatch = append(h.unwatch, stop)
	if h.events == nil {
		return nil
	}
	if stop, err = r.WatchEvents(h.config.Policy.Name, h.events.Status); err == nil {
		h.unwatch = append(h.unwatch, stop)
	}
	return err
}

func (d *deployment) watching() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return int64(d.watchers)
}

// tally has the counts of a deployment since it was added. Safe for use by many goroutines.
type tally struct {
	mu        sync.Mutex // guards what follows, but for the atomics
	decisions map[decided]uint64
	failures  map[codes.Code]uint64   // failed picks
	cached    warmpathv1.CachedTokens // over the requests whose end was reported with usage
	shadow    warmpathv1.ShadowStatus // over the decisions of one shadow policy

	registrationsExpired atomic.Int64
	pollsFailed          atomic.Int64
	unpublished          atomic.Int64 // what could not be sent to clients or other servers
	sentBytes            atomic.Int64 // to watchers
	sentMessages         atomic.Int64
}

type decided struct {
	policy string
	reason policy.Reason
}

// maxKinds bounds the kinds of decisions: a custom policy has its own reasons.
const (
	maxKinds    = 256
	otherReason = policy.Reason("other")
)

func (t *tally) decided(policyName string, q *policy.Request, d *policy.Decision) {
	k := decided{policyName, d.Reason}
	shadow, other, actual, shadowed := router.Shadow(q)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.decisions[k] == 0 && len(t.decisions) >= maxKinds {
		k.reason = otherReason
	}
	t.decisions[k]++
	if !shadowed {
		return
	}
	if t.shadow.Policy != shadow {
		t.shadow.Reset()
		t.shadow.Policy = shadow
	}
	t.shadow.Decisions++
	if other.Replica != d.Replica {
		t.shadow.Differing++
	}
	t.shadow.MatchedTokens += uint64(other.MatchedTokens)
	t.shadow.ActualMatchedTokens += uint64(actual)
}

// used counts the usage of a request whose end was reported, if the report has it.
func (t *tally) used(q *policy.Request, d *policy.Decision, u policy.Usage) {
	prompt, predicted, cached, ok := router.Used(q, d, u)
	if !ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cached.Prompt += prompt
	t.cached.Predicted += predicted
	t.cached.Measured += cached
}

// maxReported bounds a count of a report: the sum of many clients does not overflow.
const maxReported = 1 << 32

// knownReasons are those that count by themselves in a client's report.
var knownReasons = map[policy.Reason]bool{
	policy.ReasonRoundRobin: true, policy.ReasonLeastOfTwo: true, policy.ReasonRing: true,
	policy.ReasonRingFallback: true, policy.ReasonPrefixMatch: true, policy.ReasonRendezvous: true,
	policy.ReasonRendezvousSpill: true, policy.ReasonLeastLoaded: true, policy.ReasonKVCost: true,
	policy.ReasonKVNearTie: true, policy.ReasonDecode: true, policy.ReasonPinned: true,
	policy.ReasonFallbackLocal: true, policy.ReasonNoKey: true, policy.ReasonRetry: true, policy.ReasonQueued: true,
}

// reported adds what a client decided by itself.
func (t *tally) reported(policyName string, r *warmpathv1.DecisionReport) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range r.GetCounts() {
		k := decided{policyName, policy.Reason(c.GetReason())}
		if !knownReasons[k.reason] || t.decisions[k] == 0 && len(t.decisions) >= maxKinds {
			k.reason = otherReason
		}
		if n := min(c.GetCount(), maxReported); n > 0 {
			t.decisions[k] += n
		}
	}
	prompt := min(r.GetCachedTokens().GetPrompt(), maxReported)
	t.cached.Prompt += prompt
	t.cached.Predicted += min(r.GetCachedTokens().GetPredicted(), prompt)
	t.cached.Measured += min(r.GetCachedTokens().GetMeasured(), prompt)
}

// caches returns what was predicted and measured, each nil where there is nothing. shadow is the name of the shadow
// policy.
func (t *tally) caches(shadow string) (c *warmpathv1.CachedTokens, s *warmpathv1.ShadowStatus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cached.Prompt > 0 {
		c = proto.CloneOf(&t.cached)
	}
	switch shadow {
	case "":
	case t.shadow.Policy:
		s = proto.CloneOf(&t.shadow)
	default:
		s = &warmpathv1.ShadowStatus{Policy: shadow}
	}
	return c, s
}

// failed counts a failed pick.
func (t *tally) failed(code codes.Code) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures[code]++
}

// sent counts a message to a watcher.
func (t *tally) sent(m *warmpathv1.WatchReplicasResponse) {
	t.sentBytes.Add(int64(proto.Size(m)))
	t.sentMessages.Add(1)
}

// counts returns the decisions, the most frequent first, and the failures by code.
func (t *tally) counts() (decisions []*warmpathv1.DecisionCount, failures []*warmpathv1.FailureCount) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for code, n := range t.failures {
		failures = append(failures, &warmpathv1.FailureCount{Code: int32(code), Count: n})
	}
	slices.SortFunc(failures, func(a, b *warmpathv1.FailureCount) int { return cmp.Compare(a.GetCode(), b.GetCode()) })
	return decisionCounts(t.decisions), failures
}

// decisionCounts are the counts of decisions, the most frequent first.
func decisionCounts(sums map[decided]uint64) (all []*warmpathv1.DecisionCount) {
	for d, n := range sums {
		all = append(all, &warmpathv1.DecisionCount{Policy: d.policy, Reason: string(d.reason), Count: n})
	}
	slices.SortFunc(all, func(a, b *warmpathv1.DecisionCount) int {
		return cmp.Or(cmp.Compare(b.GetCount(), a.GetCount()), cmp.Compare(a.GetPolicy(), b.GetPolicy()),
			cmp.Compare(a.GetReason(), b.GetReason()))
	})
	return all
}
