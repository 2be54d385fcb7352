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
	mu        sync.Mutex // guards decisions and failures
	decisions map[decided]uint64
	failures  map[codes.Code]uint64 // failed picks

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
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.decisions == nil {
		t.decisions = make(map[decided]uint64)
	}
	if t.decisions[k] == 0 && len(t.decisions) >= maxKinds {
		k.reason = otherReason
	}
	t.decisions[k]++
}

// failed counts a failed pick.
func (t *tally) failed(code codes.Code) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failures == nil {
		t.failures = make(map[codes.Code]uint64)
	}
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
	for d, n := range t.decisions {
		decisions = append(decisions, &warmpathv1.DecisionCount{Policy: d.policy, Reason: string(d.reason), Count: n})
	}
	slices.SortFunc(decisions, moreFrequent)
	for code, n := range t.failures {
		failures = append(failures, &warmpathv1.FailureCount{Code: int32(code), Count: n})
	}
	slices.SortFunc(failures, func(a, b *warmpathv1.FailureCount) int { return cmp.Compare(a.GetCode(), b.GetCode()) })
	return decisions, failures
}

// moreFrequent orders decisions, the most frequent first.
func moreFrequent(a, b *warmpathv1.DecisionCount) int {
	return cmp.Or(
		cmp.Compare(b.GetCount(), a.GetCount()), cmp.Compare(a.GetPolicy(), b.GetPolicy()),
		cmp.Compare(a.GetReason(), b.GetReason()),
	)
}
