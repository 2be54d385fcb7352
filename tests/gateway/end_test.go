package gateway

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// listens reports whether connections to an address are accepted.
func listens(address string) bool {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// A response with a chunk each millisecond loses nothing when the picker ends, and the picker's next process serves the
// next request. If Envoy can go on without the picker, the process does not wait for the response.
func TestPickerEnds(t *testing.T) {
	for _, m := range []modes{
		{}, {response: "STREAMED"}, {request: "BUFFERED", response: "STREAMED"}, {response: "NONE"},
		{request: "BUFFERED", response: "NONE"}, {request: "BUFFERED", response: "NONE", headers: "SKIP"},
	} {
		t.Run(m.String(), func(t *testing.T) {
			engines := startEngines(t)
			p := startPicker(t, engines, "", "--grace", "1ms", "--ext-proc-fallbacks", "2")
			e := startEnvoy(t, p, engines, m)
			const half = 1000
			ended := make(chan struct{}) // the picker, or the server that it is part of
			answer(engines, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				tick := time.NewTicker(time.Millisecond)
				defer tick.Stop()
				for i, more := 0, half; more > 0; i++ {
					fmt.Fprintf(w, "data: %d\n\n", i)
					_ = http.NewResponseController(w).Flush()
					select {
					case <-ended: // and half of the chunks follow
						more--
					case <-r.Context().Done():
						return
					default:
					}
					<-tick.C
				}
				fmt.Fprint(w, "data: done\n\n")
			})
			a := e.open(http.MethodPost, completions, strings.NewReader(chat("events")))
			defer a.Body.Close()
			lines := bufio.NewScanner(a.Body)
			n := 0
			next := func() bool {
				for lines.Scan() {
					if text := lines.Text(); text != "" {
						if text == "data: done" {
							return false
						}
						require.Equal(t, fmt.Sprint("data: ", n), text)
						n++
						return true
					}
				}
				require.Fail(t, "the response is cut", "after %d chunks: %v", n, lines.Err())
				return false
			}
			for range half {
				require.True(t, next())
			}
			p.interrupt()
			exited := make(chan struct{})
			go func() { _ = p.wait(); close(exited) }()
			if m.response == "" {
				eventually(t, func() bool { return !listens(p.routes) }, "the rest of the server ends")
				close(ended)
			} else {
				go func() { <-exited; close(ended) }()
			}
			for next() {
			}
			require.GreaterOrEqual(t, n, 2*half)
			<-exited
			require.Zero(t, p.cmd.ProcessState.ExitCode(), "%s", p)

			answer(engines, nil)
			p.begin()
			eventually(t, func() bool { return e.do(http.MethodPost, completions, chat("again")).code == http.StatusOK })
		})
	}
}
