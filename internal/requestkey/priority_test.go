package requestkey

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/balancer/dialect"
)

func TestPatchPriority(t *testing.T) {
	table := mustTable(t)
	vllm, other := table.Lookup("/vllm.Inference/Generate"), table.Lookup("/trtllm.TrtllmService/Generate")
	field := func(n int64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, 12, protowire.VarintType), uint64(n))
	}
	plain := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "r")
	require.Equal(t, field(-1), vllm.PatchPriority(nil, 1, plain), "high")
	require.Equal(t, field(1), vllm.PatchPriority(nil, -1, plain), "low")
	require.Empty(t, vllm.PatchPriority(nil, 0, plain), "normal")
	require.Empty(t, vllm.PatchPriority(nil, 1, append(plain, field(7)...)), "the application has set it")
	require.Empty(t, other.PatchPriority(nil, 1, plain), "it has no field for it")
	// SGLang serves the largest first, and may serve a request without a priority behind all others.
	sglang := table.Lookup("/sglang.runtime.v1.SglangService/Generate")
	high := protowire.AppendVarint(protowire.AppendTag(nil, 14, protowire.VarintType), 1)
	require.Equal(t, high, sglang.PatchPriority(nil, 1, []byte{}), "high")
	require.Empty(t, sglang.PatchPriority(nil, -1, []byte{}), "low")
	require.Empty(t, table.Lookup("/sglang.runtime.v1.SglangService/TextGenerate").PatchPriority(nil, 1, []byte{}))
	_, err := NewTable(dialect.Dialect{Methods: []string{"/a/b"}, Priority: "1[].2"})
	require.ErrorContains(t, err, "priority: ")
}
