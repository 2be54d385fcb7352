package peers

import (
	"context"
	"testing"

	"github.com/go-logr/logr"
	"github.com/llm-d/llm-d-kv-cache/pkg/kvcache"
	"github.com/llm-d/llm-d-kv-cache/pkg/kvcache/kvblock"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

func init() { log.SetLogger(logr.Discard()) } // both peers use its logger

// llmd is llm-d-kv-cache with its in-memory index. It differs from the defaults in its size: not 100 million keys, so
// that all indexes are full at the same point. Queries have no filter of pods and updates have no engine keys, which
// is the least work.
type llmd struct {
	ctx    context.Context
	hasher kvblock.TokenProcessor
	index  kvblock.Index
	scorer kvcache.KVBlockScorer
	pods   [replicas][]kvblock.PodEntry
}

// newLLMD returns an index for as many pairs of block and replica as the others, where either all replicas share
// every block, or none do.
func newLLMD(t testing.TB, shared bool) *llmd {
	hasher, err := kvblock.NewChunkedTokenDatabase(&kvblock.TokenProcessorConfig{BlockSizeTokens: blockTokens})
	require.NoError(t, err)
	config := kvblock.DefaultIndexConfig()
	if config.InMemoryConfig.Size = replicas * capacity; shared {
		config.InMemoryConfig.Size = capacity
	}
	index, err := kvblock.NewIndex(t.Context(), config)
	require.NoError(t, err)
	scorer, err := kvcache.NewKVBlockScorer(kvcache.DefaultKVBlockScorerConfig())
	require.NoError(t, err)
	x := &llmd{ctx: t.Context(), hasher: hasher, index: index, scorer: scorer}
	for i := range x.pods {
		x.pods[i] = []kvblock.PodEntry{{PodIdentifier: replicaName(i), DeviceTier: "gpu"}}
	}
	return x
}

func (x *llmd) hash(p prompt) []kvblock.BlockHash {
	keys, err := x.hasher.TokensToKVBlockKeys(kvblock.EmptyBlockHash, p.tokens, "m", nil)
	must(err)
	return keys
}

func (x *llmd) lookup(keys []kvblock.BlockHash) map[kvblock.BlockHash][]kvblock.PodEntry {
	found, err := x.index.Lookup(x.ctx, keys, nil)
	must(err)
	return found
}

func (x *llmd) score(keys []kvblock.BlockHash, found map[kvblock.BlockHash][]kvblock.PodEntry) map[string]float64 {
	scores, err := x.scorer.Score(x.ctx, keys, found)
	must(err)
	return scores
}

func (x *llmd) insert(replica int, keys []kvblock.BlockHash) {
	must(x.index.Add(x.ctx, nil, keys, x.pods[replica]))
}

func (x *llmd) add(replica int, p prompt, from int) { x.insert(replica, x.hash(p)[from:]) }

func (x *llmd) depths(p prompt) (d [replicas]int) {
	keys := x.hash(p)
	scores := x.score(keys, x.lookup(keys))
	for i := range d {
		d[i] = int(scores[replicaName(i)]) // a block on the GPU counts 1
	}
	return d
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
