package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// needs skips a test if a program that it needs is missing. With WARMPATH_REQUIRE_ALL the test fails instead.
func needs(t testing.TB, what string, err error) {
	t.Helper()
	switch {
	case err == nil:
	case os.Getenv("WARMPATH_REQUIRE_ALL") != "":
		t.Fatalf("%s is not installed: %v", what, err)
	default:
		t.Skipf("%s is not installed: %v", what, err)
	}
}

// served is a replica that follows the instructions in the body of a request, and counts cancelled calls.
func served(cancelled *atomic.Int32) *replica {
	wait := func(ctx context.Context) error {
		<-ctx.Done()
		cancelled.Add(1)
		return ctx.Err()
	}
	return &replica{
		unary: func(ctx context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			if err := errors.Join(grpc.SetHeader(ctx, keys), grpc.SetTrailer(ctx, keys)); err != nil {
				return nil, err
			}
			switch string(q.GetPayload().GetBody()) {
			case "refuse":
				return nil, refused()
			case "wait":
				return nil, wait(ctx)
			}
			return &testpb.SimpleResponse{Payload: q.GetPayload()}, nil
		},
		output: func(q *testpb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			n, _ := strconv.Atoi(string(q.GetPayload().GetBody()))
			for range max(n, 1) {
				if err := out.Send(q2a(q)); err != nil {
					return err
				}
			}
			if n == 0 {
				return wait(out.Context())
			}
			return nil
		},
		input: counted,
		duplex: func(x grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			for {
				q, err := x.Recv()
				if err == io.EOF {
					return nil
				}
				if err == nil {
					err = x.Send(q2a(q))
				}
				if err != nil {
					return err
				}
			}
		},
	}
}

// grpcio, which shares its core with C++, is the client.
func TestPython(t *testing.T) {
	const python = "/usr/bin/python3"
	out, err := exec.Command(python, "-c", "import grpc").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	needs(t, python+" with grpcio", err)
	var cancelled atomic.Int32
	r := start(t, served(&cancelled))
	_, at := through(t, "warmpath:///"+r.at)
	for _, address := range []string{r.at, at} { // also on a direct connection, to check the program itself
		cmd := exec.CommandContext(deadline(t), python, "testdata/client.py", address)
		cmd.Env = append(os.Environ(), "GRPC_VERBOSITY=NONE", "no_proxy=127.0.0.1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, "good\n", string(out))
	}
	r.server.GracefulStop()
	require.EqualValues(t, 4, cancelled.Load(), "deadlines and cancellations reach the replica")
}

// Reflection and health are passed on to a replica.
func TestGrpcurl(t *testing.T) {
	_, err := exec.LookPath("grpcurl")
	needs(t, "grpcurl", err)
	var cancelled atomic.Int32
	_, at := through(t, "warmpath:///"+start(t, served(&cancelled)).at)
	grpcurl := func(args ...string) string {
		out, err := exec.CommandContext(deadline(t), "grpcurl", append([]string{"-plaintext"}, args...)...).CombinedOutput()
		require.NoError(t, err, "grpcurl %s\n%s", strings.Join(args, " "), out)
		return string(out)
	}
	require.Contains(t, grpcurl(at, "list"), "grpc.testing.TestService\n")
	require.Contains(t, grpcurl(at, "describe", "grpc.testing.TestService.UnaryCall"), ".grpc.testing.SimpleRequest")
	require.Contains(t, grpcurl(at, "grpc.health.v1.Health/Check"), "SERVING")
	require.Contains(t, grpcurl("-d", `{"service":"warmpath"}`, at, "grpc.health.v1.Health/Check"), "SERVING")
	require.Contains(t, grpcurl("-d", `{"payload":{"body":"aGVsbG8="}}`, at, "grpc.testing.TestService/UnaryCall"), `"body": "aGVsbG8="`)
	require.Equal(t, 2, strings.Count(grpcurl("-d", `{"payload":{"body":"Mg=="}}`, at, "grpc.testing.TestService/StreamingOutputCall"), "Mg=="))
}
