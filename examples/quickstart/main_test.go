package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/examples/stubs/fake"
)

func TestQuickstart(t *testing.T) {
	target, servers, stop, err := fake.Fleet(2)
	require.NoError(t, err)
	defer stop()
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out, target))
	require.Equal(t, "[1]\n[2]\n[3]\n[4]\n[5]\n[6]\n[7]\n[8]\n", out.String())
	require.Equal(t, 1, servers[0].Calls()+servers[1].Calls())
}
