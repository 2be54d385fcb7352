package peers

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/kvaware"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/cacheview"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/rendezvous"
	"github.com/warmpath/warmpath/internal/router"
)

// budget returns a size in bytes that holds as many pairs of block and replica as the other indexes.
func budget(shared bool) int64 {
	if shared {
		return replicas * capacity * 15 / 2
	}
	return replicas * capacity * 20
}

// ours is a warmpath policy with its Router.
type ours struct {
	policy   policy.Policy
	router   *router.Router
	view     policy.View
	text     bool // prompts are text instead of token ids
	reported bool // the engines report their contents; otherwise routes predict them

	change [1]policy.CacheChange // reused by report
}

// newReported returns kv_aware with reported cache contents, keyed by token ids.
func newReported(t testing.TB, shared bool) *ours {
	x := newKVAware(t, shared)
	x.reported = true
	return x
}

// newPredicted returns kv_aware with predicted cache contents, keyed by text.
func newPredicted(t testing.TB, shared bool) *ours {
	x := newKVAware(t, shared)
	x.text = true
	return x
}

func newKVAware(t testing.TB, shared bool) *ours {
	config := kvaware.Config{}.WithDefaults()
	config.IndexBytes = budget(shared)
	config.KVTokens = capacity * blockTokens
	p, err := kvaware.New(config)
	require.NoError(t, err)
	x := &ours{policy: p}
	x.router = policytest.NewRouter(t, p, policytest.Fleet(replicas))
	x.view = x.router.View()
	return x
}

// pick hashes, looks up, scores and chooses: all steps of a pick except the reservation.
func (x *ours) pick(q *policy.Request, p prompt) policy.Decision {
	*q = policy.Request{}
	if x.text {
		q.SetPrompt(policy.Prompt{Text: p.text})
	} else {
		q.SetPrompt(policy.Prompt{Tokens: p.tokens})
	}
	must(x.policy.Prepare(context.Background(), q, x.view))
	return x.policy.Choose(q, x.view)
}

// report reports that a replica holds these blocks, as an engine's events do.
func (x *ours) report(replica int, blocks []uint64) {
	id := x.view.Replicas()[replica].ID
	x.change[0] = policy.CacheChange{Replica: id, BlockTokens: blockTokens, Stored: blocks}
	x.router.CacheChanged(x.change[:])
}

// routed reports that a picked request went to a replica, and ended.
func (x *ours) routed(replica int, q *policy.Request) {
	d := policy.To(x.view.Replicas()[replica], policy.ReasonPrefixMatch)
	x.policy.Observer.Routed(q, d)
	x.policy.Observer.Completed(q, d, policy.Outcome{Sent: true, Usage: policy.NoUsage})
}

func (x *ours) add(replica int, p prompt, from int) {
	if x.reported {
		x.report(replica, hashes(p)[from:])
		return
	}
	var q policy.Request
	x.pick(&q, p)
	x.routed(replica, &q)
}

func hashes(p prompt) []uint64 {
	return kvindex.AppendTokens(nil, p.tokens, blockTokens, kvindex.SeedFor("", "", ""))
}

// table is the index of the policy by itself. It returns the depth of every replica.
type table struct {
	index *cacheview.Index
	fleet *cacheview.Fleet
	text  bool
}

func newTable(t testing.TB, text bool) *table {
	x := &table{text: text}
	grain := rendezvous.Grain{Bytes: blockBytes, Tokens: blockTokens}
	x.index = cacheview.New(cacheview.Options{MaxBytes: budget(false), Grain: grain, KVTokens: capacity * blockTokens})
	view := newKVAware(t, false).view
	x.index.FleetChanged(policy.FleetChange{Added: view.Replicas()})
	x.fleet = x.index.Fleet(view)
	return x
}

func (x *table) cut(p prompt) *rendezvous.Blocks {
	asked := policy.Prompt{Tokens: p.tokens}
	if x.text {
		asked = policy.Prompt{Text: p.text}
	}
	b := new(rendezvous.Blocks)
	b.Cut(asked, len(p.tokens), x.index.Grain(""), kvindex.SeedFor("", "", ""))
	return b
}

func (x *table) add(replica int, p prompt, from int) {
	change := policy.CacheChange{Replica: replicaName(replica), BlockTokens: blockTokens, Stored: x.cut(p).Hashes[from:]}
	x.index.CacheChanged([]policy.CacheChange{change})
}

func (x *table) depths(p prompt) (d [replicas]int) {
	var f cacheview.Found
	x.index.Match(x.fleet, x.cut(p), &f)
	for i := range d {
		d[i] = f.Any(x.fleet.Unit(i, 0))
	}
	return d
}
