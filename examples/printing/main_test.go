package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/examples/stubs/fake"
)

func TestPrinting(t *testing.T) {
	target, _, stop, err := fake.Fleet(3)
	require.NoError(t, err)
	defer stop()
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out, target))

	said := out.String()
	require.Equal(t, 3, strings.Count(said, "decision: 127.0.0.1:"), said)
	require.Equal(t, 3, strings.Count(said, "span: vllm.grpc.engine.VllmEngine/Generate warmpath.policy=prefix_cache_affinity"), said)
	require.Equal(t, 2, strings.Count(said, "warmpath.reason=prefix_match"), said)
	require.NotContains(t, said, "sky", "the prompt is in it")
}
