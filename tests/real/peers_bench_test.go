package real

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy/kvaware"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/freeport"
)

// smg is SMG's gateway, with its event-driven policy.
type smg struct {
	cmd  *exec.Cmd
	url  string
	http http.Client
}

// startSMG starts the gateway for engines until the benchmark ends.
func startSMG(b *testing.B, engines []*engine) *smg {
	b.Helper()
	ports := freeport.Find(2)
	args := []string{"launch", "--policy", "cache_aware", "--host", "127.0.0.1", "--port", strconv.Itoa(ports[0]),
		"--prometheus-port", strconv.Itoa(ports[1]), "--log-level", "warn", "--worker-urls"}
	for _, e := range engines {
		args = append(args, "grpc://"+e.addr)
	}
	s := &smg{cmd: exec.Command(requireEngines(b).program("smg"), args...), url: fmt.Sprint("http://127.0.0.1:", ports[0])}
	s.http.Transport = &http.Transport{MaxIdleConnsPerHost: 100} // keeps the connections of all calls at once
	b.Cleanup(s.http.CloseIdleConnections)
	log, err := os.Create(filepath.Join(b.TempDir(), "smg.log"))
	require.NoError(b, err)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(b, s.cmd.Start())
	b.Cleanup(func() {
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
		_ = s.cmd.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && b.Failed() {
			b.Log(string(text[max(0, len(text)-4000):]))
		}
	})
	require.Eventually(b, func() bool { // until it knows the engines
		a := s.generate(b.Context(), request{prompt: []uint32{3, 4, 5}, bound: 1})
		return a.err == nil && len(a.output) == 1
	}, time.Minute, 100*time.Millisecond)
	return s
}

// processor is the processor time that the gateway's processes have used.
func (s *smg) processor() (sum time.Duration) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if fields[2] == strconv.Itoa(s.cmd.Process.Pid) {
			user, _ := strconv.Atoi(fields[11])
			system, _ := strconv.Atoi(fields[12])
			sum += time.Duration(user+system) * 10 * time.Millisecond // Linux counts in hundredths
		}
	}
	return sum
}

// generate makes a call of the gateway's HTTP API.
func (s *smg) generate(ctx context.Context, q request) (a answer) {
	a.request = q
	body, err := json.Marshal(map[string]any{
		"model": "tiny", "input_ids": q.prompt, "stream": true,
		"sampling_params": map[string]any{"temperature": 0, "max_new_tokens": q.bound},
	})
	if err != nil {
		a.err = err
		return a
	}
	begin := time.Now()
	m, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/generate", bytes.NewReader(body))
	if err != nil {
		a.err = err
		return a
	}
	m.Header.Set("Content-Type", "application/json")
	response, err := s.http.Do(m)
	if err != nil {
		a.err = err
		return a
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		a.err = fmt.Errorf("SMG: %s", response.Status)
		return a
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok || bytes.Equal(line, []byte("[DONE]")) {
			continue
		}
		var m struct {
			Output []uint32 `json:"output_ids"`
			Meta   struct {
				Completion int `json:"completion_tokens"`
				Cached     int `json:"cached_tokens"`
			} `json:"meta_info"`
		}
		if err := json.Unmarshal(line, &m); err != nil {
			a.err = fmt.Errorf("SMG: %w: %s", err, line)
			return a
		}
		if a.first == 0 {
			a.first = time.Since(begin)
		}
		// The last message has the last ids again.
		if news := m.Meta.Completion - len(a.output); news > 0 && news <= len(m.Output) {
			a.output = append(a.output, m.Output[len(m.Output)-news:]...)
		}
		a.cached = max(a.cached, m.Meta.Cached)
	}
	a.err = lines.Err()
	return a
}

// BenchmarkPeers plays the same conversations through gRPC's round_robin, warmpath, and SMG, in turns on the same
// engines with empty caches: three rounds, of which it reports the medians.
func BenchmarkPeers(b *testing.B) {
	engines := shared(b)
	trace := conversations(24, 6)
	gateway := startSMG(b, engines)
	contenders := []struct {
		name string
		ask  func(b *testing.B) generate // over channels of its own
	}{
		{"round_robin of gRPC", func(b *testing.B) generate { return viaEngine(plain(b, engines)) }},
		{"warmpath", func(b *testing.B) generate { return viaEngine(dial(b, target(engines))) }},
		{"warmpath kv_aware with events", func(b *testing.B) generate {
			return viaEngine(dial(b, target(engines), client.WithConfig(`{"kv_events":"grpc:vllm"}`), client.WithPolicy(kvaware.Config{})))
		}},
		{"SMG cache_aware with events", func(b *testing.B) generate { return gateway.generate }},
	}
	columns := []string{"cached %", "TTFT p50 ms", "TTFT p95 ms", "client ms/call", "SMG ms/call"}
	rounds := make(map[string][][]float64)
	var want [][][]uint32
	for range 3 {
		for _, c := range contenders {
			for _, e := range engines {
				require.NoError(b, e.flush(b.Context()))
			}
			ask := c.ask(b)
			for i := range 12 { // connections are made, and the events of the flush arrive
				require.NoError(b, ask(b.Context(), request{prompt: []uint32{uint32(100 + i), 4, 5}, bound: 2}).err)
			}
			client, server := self(b), gateway.processor()
			played := play(b.Context(), trace, 8, ask)
			client, server = self(b)-client, gateway.processor()-server
			if got := outputs(b, played); want == nil {
				want = got
			} else {
				require.Equal(b, want, got)
			}
			var firsts []float64
			for _, conversation := range played {
				for _, a := range conversation {
					firsts = append(firsts, float64(a.first)/1e6)
				}
			}
			slices.Sort(firsts)
			calls := float64(len(firsts))
			rounds[c.name] = append(rounds[c.name], []float64{100 * cachedOf(b, played), firsts[len(firsts)/2], firsts[len(firsts)*95/100],
				float64(client) / 1e6 / calls, float64(server) / 1e6 / calls})
		}
	}
	load, err := os.ReadFile("/proc/loadavg") // that of all processes, engines included
	require.NoError(b, err)
	fmt.Printf("load average: %s| | %s |\n|---|---|---|---|---|---|\n", load, strings.Join(columns, " | "))
	for _, c := range contenders {
		fmt.Printf("| %s |", c.name)
		for i := range columns {
			var values []float64
			for _, r := range rounds[c.name] {
				values = append(values, r[i])
			}
			slices.Sort(values)
			fmt.Printf(" %.2f |", values[len(values)/2])
		}
		fmt.Println()
	}
}

// self is the processor time that this process has used.
func self(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
