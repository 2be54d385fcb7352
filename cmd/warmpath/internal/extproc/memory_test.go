package extproc_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/cmd/warmpath/internal/extproc"
	"github.com/warmpath/warmpath/internal/endpoint"
)

// metered counts, for each stream of a host, the bytes of the body that are received and not yet sent.
type metered struct {
	endpoint.Host
	most   atomic.Int64 // of any stream
	routed atomic.Int64 // of any stream whose body has been passed on in full before
}

func (m *metered) ServerOptions() []grpc.ServerOption {
	count := func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		return next(srv, &meteredStream{ServerStream: s, all: m})
	}
	return append(m.Host.ServerOptions(), grpc.ChainStreamInterceptor(count))
}

type meteredStream struct {
	grpc.ServerStream
	all  *metered
	kept int
	free bool // all has been passed on once
}

func (s *meteredStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	s.kept += extproc.BodyOf(m)
	raise(&s.all.most, s.kept)
	if s.free {
		raise(&s.all.routed, s.kept)
	}
	return err
}

func (s *meteredStream) SendMsg(m any) error {
	n := extproc.BodyOf(m)
	err := s.ServerStream.SendMsg(m)
	s.kept -= n
	s.free = s.free || n > 0 && s.kept == 0
	return err
}

func raise(most *atomic.Int64, n int) {
	for old := most.Load(); int64(n) > old && !most.CompareAndSwap(old, int64(n)); old = most.Load() {
	}
}

// Of a long body only the part that the key needs is kept, and later one chunk.
func TestBytesKept(t *testing.T) {
	m := new(metered)
	const maxBody, maxHeld, chunk = 200_000, 500_000, 60_000
	p := startPicker(t, fleet, extproc.Options{MaxBody: maxBody, MaxHeld: maxHeld}, func(h endpoint.Host) endpoint.Host {
		m.Host = h
		return m
	})
	text := prompt(strings.Repeat("a long prompt ", 60_000))
	var done sync.WaitGroup
	const streams = 8
	for range streams {
		done.Go(func() {
			g := p.open(t, duplex)
			g.headers(chatHeaders(), nil, false)
			for rest := text; rest != ""; {
				n := min(chunk, len(rest))
				g.body(rest[:n], n == len(rest))
				rest = rest[n:]
				if held := p.Held(); held > maxHeld+streams*chunk {
					t.Errorf("%d bytes are held", held)
				}
			}
			g.picked()
			g.echoed(text, true)
			g.done()
		})
	}
	done.Wait()
	p.idle(t)
	require.LessOrEqual(t, m.most.Load(), int64(maxBody+64<<10))
	require.LessOrEqual(t, m.routed.Load(), int64(64<<10))
	require.NotZero(t, m.routed.Load())
}

// asServer makes the test's program act as a server, on an address that it prints, until its standard input ends.
const asServer = "WARMPATH_TEST_EXT_PROC"

// BenchmarkMemory is the peak memory of a process under 1,000 concurrent requests with bodies of 10 MB, in chunks of
// 16 KiB as Envoy sends them.
func BenchmarkMemory(b *testing.B) {
	c := exec.Command(os.Args[0], "-test.run=^TestServerProcess$")
	c.Env, c.Stderr = append(os.Environ(), asServer+"=1"), os.Stderr
	in, err := c.StdinPipe()
	require.NoError(b, err)
	out, err := c.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, c.Start())
	address, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(b, err)
	conns := make([]extprocv3.ExternalProcessorClient, 4)
	for i := range conns {
		conn, err := grpc.NewClient(strings.TrimSpace(address), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(b, err)
		defer conn.Close()
		conns[i] = extprocv3.NewExternalProcessorClient(conn)
	}
	text := prompt(strings.Repeat("a long prompt ", 10<<20/14))
	for range b.N {
		var done sync.WaitGroup
		for i := range 1000 {
			done.Go(func() {
				if err := passBody(b, conns[i%len(conns)], text); err != nil {
					b.Error(err)
				}
			})
		}
		done.Wait()
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Process.Pid))
	require.NoError(b, err)
	kb, err := strconv.Atoi(regexp.MustCompile(`VmHWM:\s+(\d+)`).FindStringSubmatch(string(status))[1])
	require.NoError(b, err)
	b.ReportMetric(float64(kb)/1024, "peak-MiB")
	require.NoError(b, in.Close())
	require.NoError(b, c.Wait())
}

// passBody sends a body, and receives it.
func passBody(b *testing.B, c extprocv3.ExternalProcessorClient, text string) error {
	stream, err := c.Process(b.Context())
	if err != nil {
		return err
	}
	go func() {
		_ = stream.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
			RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(chatHeaders())},
		}})
		for rest := text; rest != ""; {
			n := min(16<<10, len(rest))
			_ = stream.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
				RequestBody: &extprocv3.HttpBody{Body: []byte(rest[:n]), EndOfStream: n == len(rest)},
			}})
			rest = rest[n:]
		}
		_ = stream.CloseSend()
	}()
	n := 0
	for {
		m, err := stream.Recv()
		if err == io.EOF && n == len(text) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("after %d bytes: %w", n, err)
		}
		n += len(m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody())
	}
}

// TestServerProcess is the server of BenchmarkMemory.
func TestServerProcess(t *testing.T) {
	if os.Getenv(asServer) == "" {
		t.Skip("it is the server of BenchmarkMemory")
	}
	p := startPicker(t, fleet, extproc.Options{Deployment: "chat"}, nil)
	fmt.Println(p.address)
	_, _ = io.Copy(io.Discard, os.Stdin)
}
