package call

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// The parts of a policy apart from the request key do not make a host read the call: power of two choices stays
// quick.
func TestBare(t *testing.T) {
	var none *Route
	for uses, bare := range map[policy.Uses]bool{
		0: true, policy.UsesOngoing: true, policy.SharesByKey: true, policy.UsesSession: false, policy.UsesPrompt: false,
	} {
		require.Equal(t, bare, none.Bare(uses) != nil, "%b", uses)
	}
	require.NotNil(t, new(Route).Bare(policy.UsesOngoing))
}
