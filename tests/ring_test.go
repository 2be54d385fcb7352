package tests

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/consistenthash"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// ringOrder returns the order in which consistent_hash tries replicas for a session, from the core and without a
// socket.
func ringOrder(t *testing.T, rs []*replica, session string) []string {
	t.Helper()
	c, err := policy.ParseConfig([]byte(`{"policy":{"consistent_hash":{}}}`))
	require.NoError(t, err)
	r, err := router.FromConfig(c, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	members := make([]router.Member, len(rs))
	for i, rep := range rs {
		members[i] = router.Member{Attributes: policy.Attributes{ID: rep.addr, Address: rep.addr}}
	}
	r.Fleet.Set(members)
	for _, m := range members {
		r.Fleet.SetConnected(m.ID, true)
	}
	q := &policy.Request{Session: session}
	var order []string
	for range rs {
		var b router.Reservation
		require.NoError(t, r.Reserve(context.Background(), q, &b, router.How{NoWait: true}))
		order = append(order, b.Decision.Replica.ID)
		b.Release()
		router.NextAttempt(q, b.Decision.Replica)
	}
	return order
}

func reasonIs(r policy.Reason) attribute.KeyValue {
	return telemetry.KeyReason.String(string(r))
}

// ringFirst is the first of ringOrder, with one Router for all queries of the same fleet.
func ringFirst(t *testing.T, rs []*replica, session string) string {
	t.Helper()
	r := ringOf(t, rs)
	var b router.Reservation
	require.NoError(t, r.Reserve(context.Background(), &policy.Request{Session: session}, &b, router.How{NoWait: true}))
	defer b.Release()
	return b.Decision.Replica.ID
}

var rings = map[string]*router.Router{} // by fleet; tests here do not run in parallel

func ringOf(t *testing.T, rs []*replica) *router.Router {
	t.Helper()
	var key strings.Builder
	members := make([]router.Member, len(rs))
	for i, rep := range rs {
		members[i] = router.Member{Attributes: policy.Attributes{ID: rep.addr, Address: rep.addr}}
		key.WriteString(rep.addr)
	}
	if r := rings[key.String()]; r != nil {
		return r
	}
	c, err := policy.ParseConfig([]byte(`{"policy":{"consistent_hash":{}}}`))
	require.NoError(t, err)
	r, err := router.FromConfig(c, nil)
	require.NoError(t, err)
	slices.SortFunc(members, func(a, b router.Member) int { return strings.Compare(a.ID, b.ID) })
	r.Fleet.Set(members)
	for _, m := range members {
		r.Fleet.SetConnected(m.ID, true)
	}
	rings[key.String()] = r
	return r
}

// Issue 12.19: a session longer than 256 bytes has the same position as on Ray's ring, through a client's metadata,
// through its context, and over the wire to a server.
func TestLongSessionsTakeRaysPlace(t *testing.T) {
	rs := replicas(t, 5)
	cc := dial(t, target(rs...), client.WithConfig(`{"policy":{"consistent_hash":{}}}`))
	connected(t, cc, rs)
	ring, err := consistenthash.New(consistenthash.Config{}.WithDefaults())
	require.NoError(t, err)
	ids := make([]string, len(rs))
	for i, rep := range rs {
		ids[i] = rep.addr
	}
	r := policytest.NewRouter(t, ring, policytest.Replicas(ids...))
	for i := range 20 {
		session := fmt.Sprint(strings.Repeat("tenant/", 60), i)
		want := policytest.Route(t, r, policytest.Session(session))
		require.Equal(t, want, where(t, client.WithSession(deadline(t), session), cc, ""))
		require.Equal(t, want, where(t, metadata.AppendToOutgoingContext(deadline(t), "x-session-id", session), cc, ""))
	}
}
