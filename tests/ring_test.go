package tests

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// ringOrder asks the core, without any socket, for the order in which
// consistent_hash tries replicas for a session.
func ringOrder(t *testing.T, rs []*replica, session string) []string {
	t.Helper()
	c, err := policy.ParseConfig([]byte(`{"policy":{"consistent_hash":{}}}`))
	require.NoError(t, err)
	r, err := c.NewRouter(nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	members := make([]routing.Member, len(rs))
	for i, rep := range rs {
		members[i] = routing.Member{Attributes: routing.Attributes{ID: rep.addr, Address: rep.addr}}
	}
	r.SetFleet(members)
	for _, m := range members {
		r.SetConnected(m.ID, true)
	}
	q := &routing.Request{Session: session}
	var order []string
	for range rs {
		var b routing.Booking
		require.NoError(t, r.Pick(context.Background(), q, &b))
		order = append(order, b.Decision.Replica.ID)
		b.Release()
		q.NextAttempt(b.Decision.Replica)
	}
	return order
}

func reasonIs(r routing.Reason) attribute.KeyValue {
	return telemetry.KeyReason.String(string(r))
}

// ringFirst is the head of ringOrder, with one Router for all questions about
// the same fleet.
func ringFirst(t *testing.T, rs []*replica, session string) string {
	t.Helper()
	r := ringOf(t, rs)
	var b routing.Booking
	require.NoError(t, r.Pick(context.Background(), &routing.Request{Session: session}, &b))
	defer b.Release()
	return b.Decision.Replica.ID
}

var rings = map[string]*routing.Router{} // by fleet; tests here do not run in parallel

func ringOf(t *testing.T, rs []*replica) *routing.Router {
	t.Helper()
	var key strings.Builder
	members := make([]routing.Member, len(rs))
	for i, rep := range rs {
		members[i] = routing.Member{Attributes: routing.Attributes{ID: rep.addr, Address: rep.addr}}
		key.WriteString(rep.addr)
	}
	if r := rings[key.String()]; r != nil {
		return r
	}
	c, err := policy.ParseConfig([]byte(`{"policy":{"consistent_hash":{}}}`))
	require.NoError(t, err)
	r, err := c.NewRouter(nil)
	require.NoError(t, err)
	slices.SortFunc(members, func(a, b routing.Member) int { return strings.Compare(a.ID, b.ID) })
	r.SetFleet(members)
	for _, m := range members {
		r.SetConnected(m.ID, true)
	}
	rings[key.String()] = r
	return r
}
