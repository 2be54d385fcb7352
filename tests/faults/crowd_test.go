package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/warmpath/warmpath/client"
)

// crowd is a set of channels that share nothing. Unary calls and streams alternate, and so do the sessions. Every
// session has its own prompt.
type crowd struct {
	channels []*grpc.ClientConn
	calls    int
}

// visit is the result of a call.
type visit struct {
	session  int
	at       string // the replica that served it
	attempts int
	err      error
}

// newCrowd dials a number of channels to the replicas, with a policy and more fields of the config.
func newCrowd(t *testing.T, clients int, policy string, config map[string]any, replicas ...string) *crowd {
	t.Helper()
	all := map[string]any{"policy": map[string]any{policy: struct{}{}}}
	maps.Copy(all, config)
	raw, err := json.Marshal(all)
	require.NoError(t, err)
	c := new(crowd)
	for range clients {
		cc, err := client.New("warmpath:///"+strings.Join(replicas, ","), grpc.WithTransportCredentials(insecure.NewCredentials()),
			client.WithConfig(string(raw)), quickly)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, cc.Close()) })
		c.channels = append(c.channels, cc)
	}
	return c
}

// enough is the deadline of a call, far longer than a successful call takes on any machine.
const enough = 2 * time.Minute

// begin makes n calls at once, each with another session and channel than the one before. The returned function waits
// for them.
func (c *crowd) begin(ctx context.Context, n int) (wait func() []visit) {
	visits := make([]visit, n)
	var all sync.WaitGroup
	for i := range visits {
		v, unary := &visits[i], (c.calls+i)%2 == 0
		v.session = i
		// Every round uses other channels, so that each channel learns the replicas of all sessions.
		cc := c.channels[(i+c.calls/n)%len(c.channels)]
		all.Go(func() { v.call(ctx, cc, unary) })
	}
	c.calls += n
	return func() []visit {
		all.Wait()
		return visits
	}
}

// round calls a number of sessions once, and requires that every call was served.
func (c *crowd) round(t *testing.T, sessions int) []visit {
	t.Helper()
	visits := c.begin(t.Context(), sessions)()
	for _, v := range visits {
		require.NoError(t, v.err, "session %d on %s, attempt %d", v.session, v.at, v.attempts)
	}
	return visits
}

// meet waits until every channel is connected to every replica: each pinned call is answered.
func (c *crowd) meet(t *testing.T, replicas ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), enough)
	defer cancel()
	for _, cc := range c.channels {
		for _, r := range replicas {
			for {
				_, err := testpb.NewTestServiceClient(cc).EmptyCall(client.WithPin(ctx, r), new(testpb.Empty), grpc.WaitForReady(true))
				if err == nil {
					break
				}
				require.NoError(t, ctx.Err(), "no connection to %s: %v", r, err)
			}
		}
	}
}

func (v *visit) call(ctx context.Context, cc *grpc.ClientConn, unary bool) {
	ctx, cancel := context.WithTimeout(ctx, enough)
	defer cancel()
	var d client.Decision
	ctx = client.WithDecision(client.WithSession(ctx, fmt.Sprint("session ", v.session)), &d)
	defer func() { v.at, v.attempts = d.Replica, d.Attempts }()
	stub := testpb.NewTestServiceClient(cc)
	body := &testpb.Payload{Body: []byte(strings.Repeat(fmt.Sprintf("what %d has said. ", v.session), 40))}
	if unary {
		_, v.err = stub.UnaryCall(ctx, &testpb.SimpleRequest{Payload: body})
		return
	}
	stream, err := stub.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{Payload: body})
	for err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) {
		v.err = err
	}
}
