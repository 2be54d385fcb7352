package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/examples/stubs/fake"
)

func TestTurnsFollowTheirConversation(t *testing.T) {
	target, servers, stop, err := fake.Fleet(3)
	require.NoError(t, err)
	defer stop()
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out, target))

	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 3)
	replica, _, _ := strings.Cut(lines[0], " ")
	require.Regexp(t, ` rendezvous(_spill)? cached 0 of `, lines[0]) // the first choice may not be connected yet
	for _, l := range lines[1:] {
		require.True(t, strings.HasPrefix(l, replica+" prefix_match cached "), l)
		require.NotContains(t, l, "cached 0 ")
	}
	for _, s := range servers {
		require.Contains(t, []int{0, 3}, s.Calls())
	}
}
