package nats_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A server that joins learns all replicas, although their descriptions together are larger than any message of NATS.
func TestLargeRegistrations(t *testing.T) {
	nats := runNATS(t, nil)
	a, b := start(t, joined(nats)), start(t, joined(nats))
	a.agrees(t, 1)
	b.agrees(t, 1)
	const replicas = 100
	for i := range replicas {
		r := &warmpathv1.Replica{Id: fmt.Sprint("r", i), Address: fmt.Sprintf("10.1.0.%d:1", i)}
		for k := range 1000 {
			r.Adapters = append(r.Adapters, fmt.Sprintf("%d-%s", k, strings.Repeat("x", 244)))
		}
		_, err := a.routing.Register(soon(t), &warmpathv1.RegisterRequest{Replica: r, LeaseMs: 600_000})
		require.NoError(t, err)
	}
	c := start(t, joined(nats))
	for _, n := range []*node{b, c} {
		require.Eventually(t, func() bool { return len(n.deployment(t).GetReplicas()) == replicas+2 }, time.Minute, 20*time.Millisecond)
		require.Zero(t, n.deployment(t).GetUnpublished())
	}
}
