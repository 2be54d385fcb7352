package server

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// tally has the counts of a deployment since it was added. Safe for use by many goroutines.
type tally struct {
	decisions sync.Map // decided -> *atomic.Int64
	kinds     atomic.Int64
	failures  [codes.Unauthenticated + 1]atomic.Int64

	registrationsExpired atomic.Int64
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

func (t *tally) decided(policyName string, reason policy.Reason) {
	k := decided{policyName, reason}
	n, ok := t.decisions.Load(k)
	if !ok {
		if t.kinds.Load() >= maxKinds {
			k.reason = otherReason
		}
		var there bool
		if n, there = t.decisions.LoadOrStore(k, new(atomic.Int64)); !there {
			t.kinds.Add(1)
		}
	}
	n.(*atomic.Int64).Add(1)
}

// failed counts a failed pick.
func (t *tally) failed(code codes.Code) {
	if int(code) < len(t.failures) {
		t.failures[code].Add(1)
	}
}

// sent counts a message to a watcher.
func (t *tally) sent(m *warmpathv1.WatchReplicasResponse) {
	t.sentBytes.Add(int64(proto.Size(m)))
	t.sentMessages.Add(1)
}

// decisionCounts returns the decisions, the most frequent first.
func (t *tally) decisionCounts() []*warmpathv1.DecisionCount {
	var all []*warmpathv1.DecisionCount
	t.decisions.Range(func(k, n any) bool {
		d := k.(decided)
		count := uint64(n.(*atomic.Int64).Load())
		all = append(all, &warmpathv1.DecisionCount{Policy: d.policy, Reason: string(d.reason), Count: count})
		return true
	})
	slices.SortFunc(all, moreFrequent)
	return all
}

// moreFrequent orders decisions, the most frequent first.
func moreFrequent(a, b *warmpathv1.DecisionCount) int {
	return cmp.Or(
		cmp.Compare(b.GetCount(), a.GetCount()), cmp.Compare(a.GetPolicy(), b.GetPolicy()),
		cmp.Compare(a.GetReason(), b.GetReason()),
	)
}

func (t *tally) failureCounts() []*warmpathv1.FailureCount {
	var all []*warmpathv1.FailureCount
	for code := range t.failures {
		if n := t.failures[code].Load(); n > 0 {
			all = append(all, &warmpathv1.FailureCount{Code: int32(code), Count: uint64(n)})
		}
	}
	return all
}
