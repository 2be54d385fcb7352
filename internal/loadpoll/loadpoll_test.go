package loadpoll

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/loadprobe"
	"github.com/warmpath/warmpath/internal/router/load"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPages(t *testing.T) {
	for name, c := range map[string]struct {
		page string
		want load.Report
		err  error
	}{
		"vllm with two ranks": {`# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0"} 77
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000",sliding_window="None"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="900"} 1.0
vllm:time_to_first_token_seconds_bucket{le="0.1"} 5
`, load.Report{QueuedTokens: -1, Ongoing: 6, KVTokens: 14400}, nil},
		"sglang with two tensor-parallel ranks": {`sglang:num_running_reqs{model_name="m",tp_rank="0"} 4
sglang:num_running_reqs{model_name="m",tp_rank="1"} 4
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 1
sglang:cache_config_info{page_size="64",num_pages="100"} 1
`, load.Report{QueuedTokens: -1, Ongoing: 5, KVTokens: 6400}, nil},
		"sglang with data-parallel attention": {`sglang:num_running_reqs{model_name="m",dp_rank="0",tp_rank="0"} 4
sglang:num_running_reqs{model_name="m",dp_rank="1",tp_rank="4"} 3
sglang:num_running_reqs{model_name="m",dp_rank="1",tp_rank="5"} 3
sglang:num_queue_reqs{model_name="m",dp_rank="1",tp_rank="4"} 1
`, load.Report{QueuedTokens: -1, Ongoing: 8}, nil},
		"sglang with priorities": {`sglang:num_running_reqs{model_name="m",priority=""} 4
sglang:num_running_reqs{model_name="m",priority="0"} 3
sglang:num_running_reqs{model_name="m",priority="5"} 1
sglang:num_queue_reqs{model_name="m",priority="0"} 2
sglang:num_queue_reqs{model_name="m",priority="5"} 1
`, load.Report{QueuedTokens: -1, Ongoing: 7}, nil},
		"vllm behind Ray": {`ray_vllm_num_requests_running{WorkerId="a",engine="0"} 3
ray_vllm_num_requests_running{WorkerId="b",engine="0"} 1
ray_vllm_num_requests_waiting{WorkerId="a",engine="0"} 2
ray_vllm_cache_config_info{block_size="16",num_gpu_blocks="100"} 1
`, load.Report{QueuedTokens: -1, Ongoing: 6, KVTokens: 1600}, nil},
		"vllm without colons": {"vllm_num_requests_running 2\n", load.Report{QueuedTokens: -1, Ongoing: 2}, nil},
		"trtllm": {"trtllm_num_requests_running 2\ntrtllm_num_requests_waiting 0\ntrtllm_kv_cache_tokens_per_block 32\ntrtllm_kv_cache_max_blocks 10\n",
			load.Report{QueuedTokens: -1, Ongoing: 2, KVTokens: 320}, nil},
		"idle, with an unknown cache":     {"vllm:num_requests_running 0\n", load.Report{QueuedTokens: -1}, nil},
		"something else's":                {"http_requests_total 5\n", load.Report{}, loadprobe.ErrNothing},
		"nothing":                         {"", load.Report{}, loadprobe.ErrNothing},
		"not a number":                    {"vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\n", load.Report{}, loadprobe.ErrNothing},
		"beyond belief":                   {"vllm:num_requests_running 1e300\nvllm:cache_config_info{block_size=\"999999999\",num_gpu_blocks=\"999999999\"} 1\n", load.Report{QueuedTokens: -1, Ongoing: 1 << 20}, nil},
		"broken":                          {"vllm:num_requests_running{engine=\"0\" 3\n", load.Report{}, loadprobe.ErrMalformed},
		"a line without end":              {strings.Repeat("x", maxLine+1), load.Report{}, errTooLong},
		"a page without end":              {strings.Repeat("x 1\n", loadprobe.MaxAnswer/4+1), load.Report{}, errTooLong},
		"cut off before what is wanted":   {"vllm:num_requests_ru", load.Report{}, loadprobe.ErrNothing},
		"with a time of its own, in tabs": {"vllm:num_requests_running\t3 1700000000000\n", load.Report{QueuedTokens: -1, Ongoing: 3}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parsePage(strings.NewReader(c.page))
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.want, got)
		})
	}
}

func FuzzPage(f *testing.F) {
	f.Add([]byte("vllm:num_requests_running{engine=\"0\"} 3\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"2\"} 1\n"))
	f.Fuzz(func(t *testing.T, page []byte) {
		l, err := parsePage(bytes.NewReader(page))
		if err != nil {
			l = load.Report{}
		}
		require.True(t, l.Ongoing >= 0 && l.Ongoing <= 1<<20 && l.KVTokens >= 0 && l.KVTokens <= 1<<31)
	})
}

func TestSources(t *testing.T) {
	for text, want := range map[string]string{
		"grpc:vllm": "", "grpc:sglang": "", "http://HOST:8000/metrics": "", "https://metrics.example/HOST": "",
		"grpc:other": "none of [grpc:openengine grpc:orca grpc:sglang grpc:tokenspeed grpc:vllm]", "": "want grpc:vllm", "HOST:8000": "want", "http://%zz": "neither", "ftp://HOST/": "want", "http://u:p@HOST/": "want", "http:///metrics": "want",
	} {
		_, err := Parse(text, nil)
		if want == "" {
			require.NoError(t, err, text)
		} else {
			require.ErrorContains(t, err, want, text)
		}
	}
	_, err := Parse("grpc:vllm", map[string]string{"a": "http://HOST/"})
	require.ErrorContains(t, err, "no pages of their own")
	_, err = Parse("http://HOST/", map[string]string{"a": "ftp://HOST/"})
	require.ErrorContains(t, err, "load_pages.a: want")
}

// Issue 12.50: PORT is that of the replica's address, and a replica may have a page of its own.
func TestPagesOfOneHost(t *testing.T) {
	page := func(running int) string {
		p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "vllm:num_requests_running %d\n", running)
		}))
		t.Cleanup(p.Close)
		return strings.TrimPrefix(p.URL, "http://")
	}
	one, two, other := page(1), page(2), page(3)
	_, port, err := net.SplitHostPort(other)
	require.NoError(t, err)
	source, err := Parse("http://HOST:PORT/metrics", map[string]string{"c": "http://HOST:" + port + "/own"})
	require.NoError(t, err)
	reports := make(chan report, 100)
	defer source.Close()
	p := New(Options[load.Report]{
		Interval: 5 * time.Millisecond, Longest: 5 * time.Millisecond, Timeout: time.Minute, Ask: asking(source, nil),
		Report: func(r policy.Attributes, l load.Report, _ error) {
			select {
			case reports <- report{r.ID, l}:
			default:
			}
		},
	})
	p.SetFleet([]policy.Attributes{member("a", one), member("b", two), member("c", "127.0.0.1:1")})
	got := make(map[string]int)
	for len(got) < 3 {
		r := <-reports
		got[r.id] = r.load.Ongoing
	}
	p.Close()
	require.Equal(t, map[string]int{"a": 1, "b": 2, "c": 3}, got)
}

// report is a report of a Poller.
type report struct {
	id   string
	load load.Report
}

type connector = func(context.Context, string) (grpc.ClientConnInterface, error)

func asking(s Source, connect connector) func(context.Context, policy.Attributes) (load.Report, error) {
	return func(ctx context.Context, r policy.Attributes) (load.Report, error) { return s.Ask(ctx, r, connect) }
}

// steps lets a Poller poll when the test has it do so.
type steps struct {
	waits chan time.Duration
	go_   chan struct{}
}

func (s steps) sleep(ctx context.Context, d time.Duration) {
	select {
	case s.waits <- d:
	case <-ctx.Done():
		return
	}
	select {
	case <-s.go_:
	case <-ctx.Done():
	}
}

func member(id, address string) policy.Attributes {
	return policy.Attributes{ID: id, Address: address}
}

// A replica is polled once an interval, and one that fails less often.
func TestPollerBacksOff(t *testing.T) {
	var broken atomic.Bool
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
			return
		}
		fmt.Fprint(w, "vllm:num_requests_running 3\nvllm:num_requests_waiting 4\n")
	}))
	defer page.Close()
	source, err := Parse(page.URL+"/metrics", nil)
	require.NoError(t, err)
	at := steps{make(chan time.Duration), make(chan struct{})}
	defer source.Close()
	reports, problems := make(chan report, 1), make(chan error, 1)
	p := New(Options[load.Report]{
		Interval: time.Second, Longest: 10 * time.Second, Timeout: time.Minute, Sleep: at.sleep, Ask: asking(source, nil),
		Report: func(r policy.Attributes, l load.Report, err error) {
			if err != nil {
				problems <- err
			} else {
				reports <- report{r.ID, l}
			}
		},
	})
	p.SetFleet([]policy.Attributes{member("a", "10.0.0.1:1")})
	require.Less(t, <-at.waits, time.Second)
	at.go_ <- struct{}{}
	require.Equal(t, report{"a", load.Report{QueuedTokens: -1, Ongoing: 7}}, <-reports)
	require.InDelta(t, time.Second, <-at.waits, float64(time.Second)/9)

	broken.Store(true)
	for _, want := range []time.Duration{2, 4, 8, 10, 10} {
		at.go_ <- struct{}{}
		require.InDelta(t, want*time.Second, <-at.waits, float64(want*time.Second)/9)
		require.ErrorContains(t, <-problems, "302 Found", "redirects are not followed")
	}
	broken.Store(false)
	at.go_ <- struct{}{}
	<-reports
	require.InDelta(t, time.Second, <-at.waits, float64(time.Second)/9)

	p.SetFleet([]policy.Attributes{member("b", "10.0.0.2:1")})
	<-at.waits // of b
	p.Close()
	p.SetFleet([]policy.Attributes{member("c", "10.0.0.3:1")}) // begins nothing that would not end
}

// answering is a connection that answers GetLoads.
type answering struct {
	grpc.ClientConnInterface
	method chan string
}

func (a answering) Invoke(_ context.Context, method string, _, answer any, _ ...grpc.CallOption) error {
	a.method <- method
	*answer.(*[]byte) = []byte{4<<3 | 2, 5, 2 << 3, 5, 6 << 3, 0xa0, 0x06} // loads: 5 requests run, 800 tokens of KV cache
	return nil
}

func TestPollerPollsByGRPC(t *testing.T) {
	source, err := Parse("grpc:sglang", nil)
	require.NoError(t, err)
	conn := answering{method: make(chan string, 1)}
	reports, problems := make(chan report), make(chan error)
	fail := errors.New("no connection")
	p := New(Options[load.Report]{
		Interval: time.Millisecond, Longest: time.Millisecond, Timeout: time.Minute,
		Ask: asking(source, func(_ context.Context, id string) (grpc.ClientConnInterface, error) {
			if id == "b" {
				return nil, fail
			}
			return conn, nil
		}),
		Report: func(r policy.Attributes, l load.Report, err error) {
			if r.ID == "b" {
				select {
				case problems <- err:
				default:
				}
				return
			}
			select {
			case reports <- report{r.ID, l}:
			default:
			}
		},
	})
	defer p.Close()
	p.SetFleet([]policy.Attributes{member("a", "10.0.0.1:1"), member("b", "10.0.0.2:1")})
	require.Equal(t, "/sglang.grpc.scheduler.SglangScheduler/GetLoads", <-conn.method)
	go func() {
		for range conn.method {
		}
	}()
	require.Equal(t, report{"a", load.Report{QueuedTokens: -1, Ongoing: 5, KVTokens: 800}}, <-reports)
	require.ErrorIs(t, <-problems, fail)
	p.Close()
	close(conn.method)
}

// hangs is a connection on which one replica answers, and every other one hangs.
type hangs struct {
	grpc.ClientConnInterface
	answers bool
	hanging *atomic.Int64
}

func (h hangs) Invoke(ctx context.Context, _ string, _, answer any, _ ...grpc.CallOption) error {
	if h.answers {
		*answer.(*[]byte) = []byte{4<<3 | 2, 2, 2 << 3, 5} // loads: 5 requests run
		return nil
	}
	h.hanging.Add(1)
	<-ctx.Done()
	return ctx.Err()
}

// Replicas that hang delay no others, however many they are.
func TestHangingReplicasDelayNoOther(t *testing.T) {
	source, err := Parse("grpc:vllm", nil)
	require.NoError(t, err)
	var hanging, answers atomic.Int64
	p := New(Options[load.Report]{
		Interval: time.Millisecond, Longest: time.Millisecond, Timeout: time.Hour,
		Sleep: func(ctx context.Context, _ time.Duration) { runtime.Gosched() },
		Ask: asking(source, func(_ context.Context, id string) (grpc.ClientConnInterface, error) {
			return hangs{answers: id == "well", hanging: &hanging}, nil
		}),
		Report: func(policy.Attributes, load.Report, error) { answers.Add(1) },
	})
	defer p.Close()
	fleet := []policy.Attributes{member("well", "10.0.0.1:1")}
	p.SetFleet(fleet)
	more := func() bool {
		was := answers.Load()
		return assert.Eventually(t, func() bool { return answers.Load() > was+10 }, 30*time.Second, time.Millisecond)
	}
	require.True(t, more())
	for i := range 4 * atOnce {
		fleet = append(fleet, member(fmt.Sprint(i), "10.0.0.2:1"))
	}
	p.SetFleet(fleet)
	require.Eventually(t, func() bool { return hanging.Load() == atOnce }, 30*time.Second, time.Millisecond)
	require.True(t, more())
}
