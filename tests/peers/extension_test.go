package peers

import (
	"context"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	k8s "k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/datalayer"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/scheduling"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/plugins/scheduling/scorer/prefix"
)

// extension is the prefix scorer of the Gateway API inference extension. It reads text. It differs from the defaults:
// it matches 512 blocks, not 256, and does not tune itself from engine reports.
type extension struct {
	ctx       context.Context
	plugin    *prefix.Plugin
	endpoints []scheduling.Endpoint
	results   [replicas]*scheduling.SchedulingResult
	cycle     *scheduling.CycleState
}

func newExtension(t testing.TB) *extension {
	ctx := context.Background() // not all of its goroutines end with a context; see insert
	plugin, err := prefix.New(ctx, prefix.Config{
		BlockSizeTokens:        blockTokens,
		MaxPrefixBlocksToMatch: depth,
		LRUCapacityPerServer:   capacity,
	})
	require.NoError(t, err)
	x := &extension{ctx: ctx, plugin: plugin, cycle: scheduling.NewCycleState()}
	for i := range x.results {
		meta := &datalayer.EndpointMetadata{NamespacedName: k8s.NamespacedName{Namespace: "d", Name: replicaName(i)}}
		endpoint := scheduling.NewEndpoint(meta, datalayer.NewMetrics(), nil)
		x.endpoints = append(x.endpoints, endpoint)
		x.results[i] = &scheduling.SchedulingResult{
			PrimaryProfileName: "p",
			ProfileResults:     map[string]*scheduling.ProfileRunResult{"p": {TargetEndpoints: []scheduling.Endpoint{endpoint}}},
		}
	}
	return x
}

func (x *extension) request(id string, p prompt) *scheduling.LLMRequest {
	body := &scheduling.LLMRequestBody{Completions: &scheduling.CompletionsRequest{Prompt: p.text}}
	return &scheduling.LLMRequest{RequestId: id, TargetModel: "m", Body: body}
}

// score hashes, looks up and scores.
func (x *extension) score(q *scheduling.LLMRequest) map[scheduling.Endpoint]float64 {
	return x.plugin.Score(x.ctx, x.cycle, q, x.endpoints)
}

// insert adds the blocks of a scored request. The plugin does so in a goroutine without a completion signal: it has
// ended when the number of goroutines is as before.
func (x *extension) insert(replica int, q *scheduling.LLMRequest) {
	before := runtime.NumGoroutine()
	x.plugin.PreRequest(x.ctx, q, x.results[replica])
	for runtime.NumGoroutine() > before {
		runtime.Gosched()
	}
}

// add adds all blocks. Those before from are present already and do not change.
func (x *extension) add(replica int, p prompt, from int) {
	q := x.request("add", p)
	x.score(q)
	x.insert(replica, q)
}

func (x *extension) depths(p prompt) (d [replicas]int) {
	scores := x.score(x.request("depths", p))
	blocks := float64(len(p.text) / blockBytes)
	for i, e := range x.endpoints {
		d[i] = int(math.Round(scores[e] * blocks)) // the score is the matched share
	}
	return d
}
