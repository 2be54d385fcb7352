package gateway

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkModes is the processor time of Envoy and of the picker for a request with 8 KB and a response of 200 events,
// in each mode of responses, and without a picker.
func BenchmarkModes(b *testing.B) {
	for _, m := range []modes{
		{}, {response: "STREAMED"}, {request: "BUFFERED", response: "STREAMED"}, {response: "NONE"},
		{response: "NONE", headers: "SKIP"}, {request: "BUFFERED", response: "NONE"},
	} {
		b.Run(m.String(), func(b *testing.B) {
			engines := startEngines(b)
			p := startPicker(b, engines, "")
			e := startEnvoy(b, p, engines, m)
			answer(engines, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "text/event-stream")
				for i := range 200 {
					fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"%d\"}}]}\n\n", i)
					_ = http.NewResponseController(w).Flush()
					time.Sleep(time.Millisecond)
				}
			})
			body := chat(strings.Repeat("8 KB of a prompt", 500))
			picker, envoy := p.processorTime(b), e.processorTime(b)
			n := 0
			for b.Loop() {
				require.Equal(b, http.StatusOK, e.do(http.MethodPost, completions, body).code)
				n++
			}
			b.ReportMetric(float64(p.processorTime(b)-picker)/1e6/float64(n), "picker-ms/op")
			b.ReportMetric(float64(e.processorTime(b)-envoy)/1e6/float64(n), "envoy-ms/op")
		})
	}
}

// processorTime is the time that a process has used so far.
func (p *process) processorTime(b *testing.B) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	require.NoError(b, err)
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	const user, system, tick = 11, 12, 10 * time.Millisecond
	u, err := strconv.Atoi(fields[user])
	require.NoError(b, err)
	s, err := strconv.Atoi(fields[system])
	require.NoError(b, err)
	return time.Duration(u+s) * tick
}
