package call

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/roundrobin"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
)

// Where no replica may serve a call its error names what is in the way.
func TestNoReplicaMayServe(t *testing.T) {
	fleet := policytest.Replicas("a", "b", "c", "d")
	fleet[1].Draining = true
	fleet[2].Models = []string{"m"}
	for i := range fleet {
		if fleet[i].Models == nil {
			fleet[i].Models = []string{"other"}
		}
	}
	p, err := roundrobin.New(roundrobin.Config{})
	require.NoError(t, err)
	r := policytest.NewRouter(t, p, fleet)
	for _, tt := range []struct {
		request policy.Request
		want    string
	}{
		{policy.Request{Pin: "x"}, `it is pinned to "x", which is not in the fleet`},
		{policy.Request{Pin: "b"}, `it is pinned to "b", which drains`},
		{policy.Request{Pin: "a", Exclude: []string{"a"}}, `it is pinned to "a", which it excludes`},
		{policy.Request{Exclude: []string{"a", "c", "d", "x"}}, "of 4, 1 draining, 3 excluded by the call"},
		{policy.Request{Model: "m", Exclude: []string{"c"}}, `of 4, 1 draining, 1 excluded by the call, 2 without the model "m"`},
	} {
		err := r.Reserve(t.Context(), &tt.request, new(router.Reservation), router.How{NoWait: true})
		require.Equal(t, router.ErrNoSuchReplica, err)
		err = Explain(err, &tt.request, r.View())
		require.ErrorIs(t, err, router.ErrNoSuchReplica)
		require.Equal(t, status.Error(codes.Unavailable, "warmpath: no replica of the fleet may serve the request: "+tt.want), Status(err))
	}
	require.Equal(t, router.ErrFull, Explain(router.ErrFull, new(policy.Request), r.View()), "as it is")
}
