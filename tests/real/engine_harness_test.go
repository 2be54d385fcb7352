package real

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/warmpath/warmpath/internal/freeport"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
)

// blockTokens is the engines' block size: attention on CPUs takes multiples of 32 only.
const blockTokens = 32

// setup says how an engine is started. All engines publish KV events.
type setup struct {
	// rust starts vllm-rs, which speaks vllm.Inference, vllm.Control and OpenAI's API, and serves the environment's LoRA
	// adapter as "adapter". Otherwise the server in Python is started, which speaks VllmEngine.
	rust bool
	// blocks bounds the KV cache, and prompts to half of it; 0 = 3,000 blocks.
	blocks int
	// ranks are data-parallel ranks, an engine core each; 0 = 1.
	ranks int
	// nixl is the role in the KV transfer: kv_producer, kv_consumer or kv_both; empty = no connector.
	nixl string
}

// engine is one vLLM server with its engine cores. It keeps its addresses over its restarts.
type engine struct {
	setup
	env environment
	// addr is the address of its gRPC server; web that of OpenAI's API and /metrics, of vllm-rs only.
	addr, web string
	// events and replay are what kv_events and kv_events_replay name, of rank 0.
	events, replay string
	log            string // the path of its output
	program        string // empty = the gRPC server in Python
	args           []string
	variables      map[string]string

	// The server's process, whose id is that of the process group of all the engine's processes; pid 0 = not started.
	started
	seen map[int]bool // the engine's processes when they were last looked for
	conn *grpc.ClientConn
}

// newEngine chooses ports and writes the command down, without starting it.
func newEngine(env environment, logs, name string, s setup) *engine {
	ranks := max(s.ranks, 1)
	ports := freeport.Find(2)
	published, side := consecutive(2*ranks), consecutive(ranks)
	e := &engine{
		setup: s, env: env, log: filepath.Join(logs, name+".log"),
		addr:   fmt.Sprint("127.0.0.1:", ports[0]),
		events: fmt.Sprint("tcp://127.0.0.1:", published), replay: fmt.Sprint("tcp://127.0.0.1:", published+ranks),
	}
	blocks := cmp.Or(s.blocks, 3000)
	flags := []string{
		"--dtype", "float32", "--max-model-len", strconv.Itoa(min(16384, blocks*blockTokens/2)), "--block-size", strconv.Itoa(blockTokens),
		"--num-gpu-blocks-override", strconv.Itoa(blocks), "--enforce-eager",
		"--kv-events-config", fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d",`+
			`"replay_endpoint":"tcp://*:%d","topic":"kv"}`, published, published+ranks),
	}
	if ranks > 1 {
		flags = append(flags, "--data-parallel-size", strconv.Itoa(ranks))
	} else {
		flags = append(flags, "--distributed-executor-backend", "uni")
	}
	if s.nixl != "" {
		flags = append(flags, "--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"`+s.nixl+
			`","kv_buffer_device":"cpu","kv_load_failure_policy":"fail"}`)
	}
	if s.rust {
		e.web = fmt.Sprint("127.0.0.1:", ports[1])
		e.program = env.program("vllm-rs")
		e.args = append([]string{
			"serve", env.model, "--python", env.headless, "--served-model-name", "tiny", "--lora-modules", "adapter=" + env.adapter,
			"--host", "127.0.0.1", "--port", strconv.Itoa(ports[1]), "--grpc-port", strconv.Itoa(ports[0]), "--", "--enable-lora",
		}, flags...)
	} else {
		e.args = append([]string{
			"--model", env.model, "--served-model-name", "tiny",
			"--host", "127.0.0.1", "--port", strconv.Itoa(ports[0]),
		}, flags...)
	}
	e.variables = map[string]string{"VLLM_NIXL_SIDE_CHANNEL_PORT": strconv.Itoa(side), "VLLM_LOG_STATS_INTERVAL": "1",
		"VLLM_SERVER_DEV_MODE": "1"} // vllm-rs flushes its cache
	return e
}

// consecutive returns the first of n free ports in a row: each rank publishes at the next port.
func consecutive(n int) int {
	for {
		ports := freeport.Find(n)
		if ports[n-1] == ports[0]+n-1 {
			return ports[0]
		}
	}
}

// start starts the engine, and returns when it serves.
func (e *engine) start(ctx context.Context) error {
	var err error
	if e.started, err = theLauncher.start(order{Log: e.log, Env: e.variables, Program: e.program, Args: e.args}); err != nil {
		return err
	}
	soon := backoff.DefaultConfig // an engine that takes minutes is found soon after, not in two minutes
	soon.MaxDelay = time.Second
	if e.conn, err = grpc.NewClient(e.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: soon, MinConnectTimeout: 20 * time.Second})); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-e.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		watch, err := healthpb.NewHealthClient(e.conn).Watch(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
		for err == nil {
			var state *healthpb.HealthCheckResponse
			if state, err = watch.Recv(); state.GetStatus() == healthpb.HealthCheckResponse_SERVING {
				return nil
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s does not serve: %w\n%s", strings.Join(append([]string{e.program}, e.args...), " "), err, e.tail())
		}
	}
}

// tail returns the end of the engine's output.
func (e *engine) tail() string {
	text, err := os.ReadFile(e.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(text), "\n")
	lines = lines[max(0, len(lines)-40):]
	for i := range lines {
		lines[i] = lines[i][:min(300, len(lines[i]))]
	}
	return strings.Join(lines, "\n")
}

// running reports whether the server's process has not ended.
func (e *engine) running() bool {
	select {
	case <-e.ended:
		return false
	default:
		return true
	}
}

// healthy reports whether the engine serves.
func (e *engine) healthy(ctx context.Context) bool {
	if !e.running() || len(e.cores()) < max(e.ranks, 1) {
		return false
	}
	state, err := healthpb.NewHealthClient(e.conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return err == nil && state.GetStatus() == healthpb.HealthCheckResponse_SERVING
}

// cores are the process ids of the engine's cores.
func (e *engine) cores() (all []int) {
	for _, p := range e.processes() {
		if strings.HasPrefix(p.name, "VLLM::EngineCore") {
			all = append(all, p.id)
		}
	}
	return all
}

type process struct {
	id   int
	name string
}

// processes are the engine's: its process group, and all descendants, which vllm-rs puts in groups of their own. Those
// that were seen before are found after their parents have ended, too.
func (e *engine) processes() (all []process) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || e.pid == 0 {
		return nil
	}
	type stat struct{ id, parent, group int }
	var living []stat
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// Behind the name, which stands in brackets: state, parent, process group.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if fields[0] == "Z" {
			continue
		}
		s := stat{}
		s.id, _ = strconv.Atoi(filepath.Base(filepath.Dir(path)))
		s.parent, _ = strconv.Atoi(fields[1])
		s.group, _ = strconv.Atoi(fields[2])
		living = append(living, s)
	}
	before := e.seen
	e.seen = make(map[int]bool)
	for found := true; found; {
		found = false
		for _, s := range living {
			if !e.seen[s.id] && (s.group == e.pid || before[s.id] || e.seen[s.parent]) {
				e.seen[s.id], found = true, true
			}
		}
	}
	for id := range e.seen {
		words, _ := os.ReadFile(fmt.Sprint("/proc/", id, "/cmdline"))
		all = append(all, process{id: id, name: string(words)})
	}
	return all
}

// killServer ends the server's process with SIGKILL. Its engine cores notice it some seconds later.
func (e *engine) killServer() {
	e.processes() // the children that are left
	_ = syscall.Kill(e.pid, syscall.SIGKILL)
	<-e.ended
}

// killCores ends the engine cores with SIGKILL; the server lives on.
func (e *engine) killCores() { e.signalCores(syscall.SIGKILL) }

// freeze stops the engine cores in the middle of what they do; thaw lets them go on.
func (e *engine) freeze() { e.signalCores(syscall.SIGSTOP) }
func (e *engine) thaw()   { e.signalCores(syscall.SIGCONT) }

func (e *engine) signalCores(s syscall.Signal) {
	for _, id := range e.cores() {
		_ = syscall.Kill(id, s)
	}
}

// terminate sends SIGTERM to the server, as a shutdown of its pod does.
func (e *engine) terminate() { _ = syscall.Kill(e.pid, syscall.SIGTERM) }

// end ends all of the engine's processes.
func (e *engine) end() {
	if e.pid == 0 {
		return
	}
	for all := e.processes(); len(all) > 0; all = e.processes() { // the kernel takes a moment to end killed processes
		for _, p := range all {
			_ = syscall.Kill(p.id, syscall.SIGKILL)
		}
		time.Sleep(time.Millisecond)
	}
	<-e.ended
	if e.conn != nil {
		_ = e.conn.Close()
	}
	e.pid, e.seen = 0, nil
}

// restart starts the engine again, whatever is left of it.
func (e *engine) restart(ctx context.Context) error {
	e.end()
	return e.start(ctx)
}

// flush empties the prefix cache. The event follows with the engine's next step.
func (e *engine) flush(ctx context.Context) error {
	if e.rust {
		defer http.DefaultClient.CloseIdleConnections()
		reset, err := http.Post("http://"+e.web+"/reset_prefix_cache", "", nil)
		if err != nil {
			return err
		}
		if _ = reset.Body.Close(); reset.StatusCode != http.StatusOK {
			return errors.New(reset.Status)
		}
		return nil
	}
	return e.conn.Invoke(ctx, "/vllm.grpc.engine.VllmEngine/FlushCache", &emptypb.Empty{}, &emptypb.Empty{})
}

// ongoing returns how many requests the engine has, by its own count.
func (e *engine) ongoing(ctx context.Context) (n int, err error) {
	if e.rust {
		running, err := e.counter(ctx, "vllm:num_requests_running")
		waiting, failed := e.counter(ctx, "vllm:num_requests_waiting")
		return int(running + waiting), errors.Join(err, failed)
	}
	all, err := enginepb.NewVllmEngineClient(e.conn).GetLoads(ctx, &enginepb.GetLoadsRequest{})
	for _, l := range all.GetLoads() {
		n += int(l.GetNumRunningReqs() + l.GetNumWaitingReqs())
	}
	return n, err
}

// counter returns the sum of a metric on vllm-rs' /metrics.
func (e *engine) counter(ctx context.Context, name string) (sum float64, err error) {
	get, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.web+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	page, err := http.DefaultClient.Do(get)
	if err != nil {
		return 0, err
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer page.Body.Close()
	for lines := bufio.NewScanner(page.Body); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), name); ok && (rest[0] == '{' || rest[0] == ' ') {
			n, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}

// startAll starts engines side by side.
func startAll(t testing.TB, engines []*engine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	begin := time.Now()
	errs := make([]error, len(engines))
	var wg sync.WaitGroup
	for i, e := range engines {
		wg.Go(func() { errs[i] = e.restart(ctx) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	t.Logf("%d engines started in %v", len(engines), time.Since(begin).Round(time.Second))
}

// theSet are the engines that run: there is memory for one set. Tests use it one after the other.
var theSet struct {
	setup
	engines []*engine
	logs    string // the folder of their output
}

// launch returns n engines of a kind whose caches are empty. They are those of the test before it if it had the same, and
// those of them that it has ended are started again.
func launch(t testing.TB, n int, s setup) []*engine {
	t.Helper()
	env := requireEngines(t)
	if theSet.setup != s || len(theSet.engines) != n {
		endSet()
		theSet.setup = s
		var err error
		theSet.logs, err = os.MkdirTemp("", "warmpath-real")
		require.NoError(t, err)
		for i := range n {
			theSet.engines = append(theSet.engines, newEngine(env, theSet.logs, fmt.Sprint("engine", i), s))
		}
	}
	engines := theSet.engines
	t.Cleanup(func() {
		if t.Failed() {
			for i, e := range engines {
				t.Logf("engine %d:\n%s", i, e.tail())
			}
		}
	})
	var broken []*engine
	for _, e := range engines {
		if e.pid == 0 || !e.healthy(t.Context()) {
			broken = append(broken, e)
		}
	}
	if len(broken) > 0 {
		startAll(t, broken)
	}
	for _, e := range engines {
		require.NoError(t, e.flush(t.Context()))
	}
	return engines
}

// shared returns three engines of VllmEngine, for tests that need nothing else.
func shared(t testing.TB) []*engine {
	t.Helper()
	return launch(t, 3, setup{})
}

// endSet ends the engines.
func endSet() {
	for _, e := range theSet.engines {
		e.end()
	}
	_ = os.RemoveAll(theSet.logs)
	theSet.engines = nil
}
