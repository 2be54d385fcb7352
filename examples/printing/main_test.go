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

	text := out.String()
	require.Equal(t, 3, strings.Count(text, "decision: 127.0.0.1:"), text)
	require.Equal(t, 3, strings.Count(text, "span: vllm.grpc.engine.VllmEngine/Generate warmpath.policy=kv_aware"), text)
	require.Equal(t, 2, strings.Count(text, "warmpath.reason=prefix_match"), text)
	require.NotContains(t, text, "sky", "the prompt is in it")
}
