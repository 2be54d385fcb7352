package tests

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
)

func TestUnderAnyResolver(t *testing.T) {
	rs := replicas(t, 3)
	_, port, err := net.SplitHostPort(rs[0].addr)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	require.NoError(t, os.WriteFile(path, []byte("replicas: [{address: \""+rs[0].addr+"\"}]"), 0o600))
	mr := newDirectory("any", state("", rs[0]))
	for _, target := range []string{
		"dns:///localhost:" + port,
		"localhost:" + port,
		"passthrough:///" + rs[0].addr,
		"any:///x",
		"warmpath:///" + rs[0].addr,
		"warmpath:" + rs[0].addr,
		"warmpath-file://" + path,
	} {
		t.Run(strings.SplitN(target, ":", 2)[0], func(t *testing.T) {
			for _, how := range []string{"New", "DialOptions"} {
				m := newMeter(t)
				opts := []client.Option{client.WithConfig(config(`{"kv_aware":{}}`)), m.option.(client.Option)}
				var cc *grpc.ClientConn
				if how == "New" {
					cc = dial(t, target, opts[0], opts[1], grpc.WithResolvers(mr))
				} else {
					var err error
					cc, err = grpc.NewClient(target, append(client.DialOptions(opts...), insecureOption(), grpc.WithResolvers(mr), grpc.WithNoProxy())...)
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, cc.Close()) })
				}
				for range 3 {
					require.Equal(t, rs[0].addr, where(t, deadline(t), cc, "x"))
				}
				require.EqualValues(t, 3, m.sum(t, "warmpath.decisions"), "one decision a call")
				if how == "New" {
					mr = newDirectory("any", state("", rs[0]))
				}
			}
		})
	}
}

func TestResolverErrorsAndEmptyFleets(t *testing.T) {
	rs := replicas(t, 2)
	mr := &directory{scheme: "empty", err: errors.New("the registry is down")}
	cc := dial(t, "empty:///x", grpc.WithResolvers(mr), roundRobin())
	stub := testpb.NewTestServiceClient(cc)
	_, err := stub.UnaryCall(deadline(t), simple(""))
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "the registry is down")
	mr.set(members(policy.Attributes{ID: "a", Address: rs[0].addr}))
	eventually(t, "the fleet is there", func() bool { _, err := stub.UnaryCall(deadline(t), simple("")); return err == nil })
	mr.fail(errors.New("the registry is down"))
	require.Equal(t, rs[0].addr, where(t, deadline(t), cc, ""), "the last good fleet stays")

	mr.set(update{})
	_, err = stub.UnaryCall(deadline(t), simple(""))
	require.Equal(t, codes.Unavailable, status.Code(err))
	mr.fail(errors.New("the registry is gone"))
	unavailable(t, stub, "the registry is gone")
	mr.set(members(policy.Attributes{ID: "b", Address: rs[1].addr}))
	eventually(t, "another fleet", func() bool {
		reply, err := stub.UnaryCall(deadline(t), simple(""))
		return err == nil && reply.Username == rs[1].addr
	})
}

// unavailable makes calls until one ends with the error of the resolver: gRPC passes it on in a goroutine of its own.
func unavailable(t *testing.T, stub testpb.TestServiceClient, text string) {
	t.Helper()
	eventually(t, text, func() bool {
		_, err := stub.UnaryCall(deadline(t), simple(""))
		assert.Equal(t, codes.Unavailable, status.Code(err))
		return err == nil || strings.Contains(err.Error(), text)
	})
}

// The error of a resolver with an empty fleet may be a status. Its code does not become the call's code.
func TestStatusOfAResolver(t *testing.T) {
	rs := replicas(t, 1)
	for _, code := range []codes.Code{codes.NotFound, codes.Unauthenticated, codes.Unavailable} {
		mr := &directory{scheme: "refused"}
		cc := dial(t, "refused:///x", grpc.WithResolvers(mr), roundRobin())
		stub := testpb.NewTestServiceClient(cc)
		_, err := stub.UnaryCall(deadline(t), simple(""))
		require.Equal(t, codes.Unavailable, status.Code(err))
		mr.fail(fmt.Errorf("the registry: %w", status.Error(code, "it refuses")))
		unavailable(t, stub, "it refuses")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err = stub.UnaryCall(ctx, simple(""), grpc.WaitForReady(true))
		cancel()
		require.Equal(t, codes.DeadlineExceeded, status.Code(err), "it waits")
		mr.set(members(policy.Attributes{ID: "a", Address: rs[0].addr}))
		_, err = stub.UnaryCall(deadline(t), simple(""), grpc.WaitForReady(true))
		require.NoError(t, err)
	}
}
