package tests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/server"
)

// python returns Debian's Python with these packages.
func python(t testing.TB, packages ...string) string {
	t.Helper()
	const program = "/usr/bin/python3"
	out, err := exec.Command(program, "-c", "import "+strings.Join(packages, ", ")).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	needs(t, program+" with "+strings.Join(packages, ", "), err)
	return program
}

// spyServer passes calls on to a look-aside server, and records them.
type spyServer struct {
	warmpathv1.UnimplementedRoutingServiceServer
	server warmpathv1.RoutingServiceClient
	silent atomic.Bool // no call is answered

	mu    sync.Mutex // guards what follows
	asked []*warmpathv1.ChooseReplicaRequest
	given []*warmpathv1.ChooseReplicaResponse
	lives map[string][]*warmpathv1.LifeReport // by reservation
	wrong []string                            // releases of reservations that the server does not have
	// traces are the traceparent values of the requests.
	traces []string
}

// ChooseReplica implements the service.
func (r *spyServer) ChooseReplica(ctx context.Context, q *warmpathv1.ChooseReplicaRequest) (*warmpathv1.ChooseReplicaResponse, error) {
	if r.silent.Load() {
		<-ctx.Done()
	}
	a, err := r.server.ChooseReplica(ctx, q)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, q)
	r.traces = append(r.traces, metadata.ValueFromIncomingContext(ctx, "traceparent")...)
	if err == nil {
		r.given = append(r.given, a)
	}
	return a, err
}

// ReportLife implements the service.
func (r *spyServer) ReportLife(ctx context.Context, q *warmpathv1.ReportLifeRequest) (*warmpathv1.ReportLifeResponse, error) {
	a, err := r.server.ReportLife(ctx, q)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, life := range q.GetLives() {
		r.lives[life.GetReservation()] = append(r.lives[life.GetReservation()], life)
		if life.GetStage() == warmpathv1.LifeStage_LIFE_STAGE_RELEASED {
			r.wrong = append(r.wrong, a.GetUnknown()...)
		}
	}
	return a, err
}

// record starts a spyServer for these replicas.
func record(t *testing.T, policy string, replicas ...string) (r *spyServer, addr string) {
	t.Helper()
	var fleet strings.Builder
	for i, at := range replicas {
		fmt.Fprintf(&fleet, "    - {id: r%d, address: %q}\n", i, at)
	}
	c, err := server.ParseConfig([]byte("deployments:\n  chat:\n    policy: {" + policy + "}\n    replicas:\n" + fleet.String()))
	require.NoError(t, err)
	s, err := server.New(c, server.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	behind := listenLoopback(t)
	conn, err := grpc.NewClient(behind.Addr().String(), insecureOption())
	require.NoError(t, err)
	r = &spyServer{
		server: warmpathv1.NewRoutingServiceClient(conn), lives: make(map[string][]*warmpathv1.LifeReport),
	}
	g := grpc.NewServer()
	warmpathv1.RegisterRoutingServiceServer(g, r)
	lis := listenLoopback(t)
	served := make(chan error, 2)
	go func() { served <- g.Serve(lis) }()
	go func() { served <- s.Serve(behind) }()
	t.Cleanup(func() {
		g.Stop()
		require.NoError(t, conn.Close())
		s.Close()
		require.NoError(t, errors.Join(<-served, <-served))
	})
	return r, lis.Addr().String()
}

// recorded returns the requests and the answers.
func (r *spyServer) recorded() ([]*warmpathv1.ChooseReplicaRequest, []*warmpathv1.ChooseReplicaResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.asked), slices.Clone(r.given)
}

// released checks that every reservation was released once and that the server had it, and returns the outcomes.
func (r *spyServer) released(t *testing.T) map[codes.Code]int {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Empty(t, r.wrong)
	require.Len(t, r.lives, len(r.given), "each reservation has a report")
	ends := make(map[codes.Code]int)
	for id, lives := range r.lives {
		n := 0
		for _, life := range lives {
			if life.GetStage() == warmpathv1.LifeStage_LIFE_STAGE_RELEASED {
				n++
				ends[codes.Code(life.GetOutcome().GetCode())]++
			}
		}
		require.Equal(t, 1, n, "%s: %v", id, lives)
	}
	return ends
}

// prefilled counts the reservations whose prefill was reported, and those that were released with a first message.
func (r *spyServer) prefilled() (reported, known int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, lives := range r.lives {
		for _, life := range lives {
			if life.GetStage() == warmpathv1.LifeStage_LIFE_STAGE_PREFILL_COMPLETE {
				reported++
			}
			if life.GetOutcome().GetFirstMessageUs() > 0 {
				known++
			}
		}
	}
	return reported, known
}

// inferenceEngines starts simulated engines that serve vllm.Inference.
func inferenceEngines(t *testing.T, n int) (addrs []string, all []*grpcserver.Server) {
	t.Helper()
	for range n {
		lis := listenLoopback(t)
		s, err := grpcserver.Start(lis, grpcserver.Config{})
		require.NoError(t, err)
		t.Cleanup(s.Kill)
		addrs, all = append(addrs, lis.Addr().String()), append(all, s)
	}
	return addrs, all
}

// runPython runs a program of the example.
func runPython(t *testing.T, env []string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python(t, "grpc", "google.protobuf", "xxhash"), args...)
	cmd.Dir = filepath.Join("..", "examples", "python")
	cmd.Env = append(append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "GRPC_VERBOSITY=NONE"), env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

func runCase(t *testing.T, kind, name, server, without string) {
	t.Helper()
	runPython(t, []string{"WARMPATH_SERVER=" + server, "WARMPATH_WITHOUT=" + without}, "-m", "unittest", "test_warmpath."+kind+".test_"+name)
}

// Both kinds of interceptors ask for a replica, call it, and report the outcome to the server.
func TestPythonInterceptors(t *testing.T) {
	unused := func() string { return freeAddr(t) }
	for _, kind := range []string{"Sync", "Asyncio"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel() // they wait for deadlines
			engines, _ := inferenceEngines(t, 2)
			t.Run("calls", func(t *testing.T) {
				r, at := record(t, "round_robin: {}", engines...)
				runCase(t, kind, "calls", at, unused())
				require.Equal(t, map[codes.Code]int{codes.OK: 4}, r.released(t))
				reported, known := r.prefilled()
				require.Equal(t, 1, reported, "of the stream; a unary call has one message, which ends it")
				require.Equal(t, 4, known)
				used := make(map[string]int)
				asked, given := r.recorded()
				for _, a := range given {
					used[a.GetReplica().GetId()]++
				}
				require.Equal(t, map[string]int{"r0": 2, "r1": 2}, used)
				require.Equal(t, "hello", asked[0].GetKey().GetText())
				require.Equal(t, "s", asked[3].GetKey().GetSession())
			})
			t.Run("ends", func(t *testing.T) {
				r, at := record(t, "round_robin: {}", engines...)
				runCase(t, kind, "ends", at, unused())
				require.Equal(t, map[codes.Code]int{codes.Canceled: 3, codes.DeadlineExceeded: 1, codes.InvalidArgument: 1}, r.released(t))
			})
			t.Run("without", func(t *testing.T) {
				runCase(t, kind, "without", unused(), engines[0])
			})
			t.Run("refused", func(t *testing.T) {
				r, at := record(t, "round_robin: {}", engines...)
				runCase(t, kind, "refused", at, engines[0])
				asked, _ := r.recorded()
				require.Len(t, asked, 2)
				require.Empty(t, r.released(t))
			})
			t.Run("dead_replica", func(t *testing.T) {
				r, at := record(t, "round_robin: {}", unused(), engines[0])
				runCase(t, kind, "dead_replica", at, unused())
				ends := r.released(t)
				require.Equal(t, 8, ends[codes.OK])
				require.Positive(t, ends[codes.Unavailable])
				asked, _ := r.recorded()
				again, attempts := 0, make(map[uint64]bool)
				for _, q := range asked {
					require.Regexp(t, "^[us][0-3]$", q.GetKey().GetRequestId(), "a policy may go by it")
					require.False(t, attempts[q.GetAttempt()], "each has a reservation of its own")
					attempts[q.GetAttempt()] = true
					if slices.Equal(q.GetTried(), []string{"r0"}) {
						again++
					}
				}
				require.Positive(t, again)
			})
		})
	}
	t.Run("many", func(t *testing.T) {
		engines, _ := inferenceEngines(t, 3)
		r, at := record(t, "power_of_two_choices: {}", engines...)
		runCase(t, "Asyncio", "many", at, unused())
		require.Equal(t, map[codes.Code]int{codes.OK: 64}, r.released(t))
	})
	t.Run("silent server", func(t *testing.T) {
		r, at := record(t, "round_robin: {}", unused())
		r.silent.Store(true)
		runCase(t, "Asyncio", "silent_server", at, unused())
	})
}

// Hashes made in Python match those of text hashed in Go, and no text is sent.
func TestPythonHashes(t *testing.T) {
	runPython(t, nil, "-m", "unittest", "test_warmpath.Hashes")
	engines, _ := inferenceEngines(t, 2)
	r, at := record(t, "kv_aware: {}", engines...)
	runCase(t, "Sync", "hashes", at, freeAddr(t))
	asked, given := r.recorded()
	require.Len(t, given, 2)
	require.NotEmpty(t, asked[0].GetKey().GetText())
	require.NotEmpty(t, asked[1].GetKey().GetBlockHashes().GetHashes())
	require.Equal(t, "prefix_match", given[1].GetDecision().GetReason())
	require.Equal(t, given[0].GetReplica().GetId(), given[1].GetReplica().GetId())
	require.Equal(t, given[1].GetDecision().GetPromptTokens(), given[1].GetDecision().GetMatchedTokens())
}

// Issue 12.45: the example finds the token ids in every engine's requests. It also calls VllmEngine: the second call
// with a prompt goes to the replica of the first, by its prefix.
func TestPythonTokenizedInput(t *testing.T) {
	runPython(t, nil, "-m", "unittest", "test_warmpath.Keys")
	engines, _ := inferenceEngines(t, 2)
	r, at := record(t, "kv_aware: {}", engines...)
	prompt := strings.Repeat("a prompt of some length, ", 8)
	printed := runPython(t, nil, "generate.py", "--ask-timeout", "60", "--service", "VllmEngine", "--server", at, prompt, prompt)
	require.Equal(t, 2, strings.Count(printed, "8 tokens, "), printed)
	require.Equal(t, map[codes.Code]int{codes.OK: 2}, r.released(t))
	asked, given := r.recorded()
	require.Len(t, asked[0].GetKey().GetTokenIds().GetIds(), len(prompt))
	require.Equal(t, "prefix_match", given[1].GetDecision().GetReason())
	require.Equal(t, given[0].GetReplica().GetId(), given[1].GetReplica().GetId())
}

// The programs of the example run with the arguments of docs/http-endpoint.md.
func TestPythonPrograms(t *testing.T) {
	engines, _ := inferenceEngines(t, 2)
	page := section(t, "docs/http-endpoint.md", "## Python")
	for _, program := range []string{"generate.py", "generate_asyncio.py"} {
		require.Contains(t, page, "    python3 examples/python/"+program+" --server 127.0.0.1:4770 hello hello another\n")
		r, at := record(t, "kv_aware: {}", engines...)
		out := runPython(t, nil, program, "--ask-timeout", "60", "--server", at, "hello", "hello", "another")
		require.Equal(t, 3, strings.Count(out, "8 tokens, "), out)
		require.Equal(t, map[codes.Code]int{codes.OK: 3}, r.released(t))
	}
}

// Every message and field of the contract in Python exists in Go. Go may have more.
func TestPythonContract(t *testing.T) {
	raw := runPython(t, nil, "-c", "import sys; from warmpath.v1 import routing_pb2 as pb; sys.stdout.buffer.write(pb.DESCRIPTOR.serialized_pb)")
	var file descriptorpb.FileDescriptorProto
	require.NoError(t, proto.Unmarshal([]byte(raw), &file))
	theirs, err := protodesc.NewFile(&file, nil)
	require.NoError(t, err)
	ours := warmpathv1.File_warmpath_v1_routing_proto
	messages := theirs.Messages()
	require.Greater(t, messages.Len(), 10)
	for i := range messages.Len() {
		known := ours.Messages().ByName(messages.Get(i).Name())
		require.NotNil(t, known, messages.Get(i).Name())
		fields := messages.Get(i).Fields()
		for j := range fields.Len() {
			f := fields.Get(j)
			same := known.Fields().ByNumber(f.Number())
			require.NotNil(t, same, f.FullName())
			require.Equal(t, describe(f), describe(same))
		}
	}
}

func describe(f protoreflect.FieldDescriptor) string {
	return fmt.Sprint(f.FullName(), f.Number(), f.Kind(), f.Cardinality())
}
