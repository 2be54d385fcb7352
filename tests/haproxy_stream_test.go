package tests

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pacedReplica writes each event after the client has received the one before, or after a second. It returns a handler
// and the channel of the client's receipts.
func pacedReplica(events int) (h http.HandlerFunc, received chan<- struct{}, late func() int) {
	receipts := make(chan struct{}, events)
	var mu sync.Mutex
	n := 0
	h = func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range events {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-receipts:
			case <-time.After(time.Second):
				mu.Lock()
				n++
				mu.Unlock()
			}
		}
	}
	return h, receipts, func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// Issue 12.1: small events pass through HAProxy one by one, each before the replica writes the next.
func TestHAProxyDoesNotDelayEvents(t *testing.T) {
	const events = 5
	late := 0
	for range 5 { // the machine may be busy
		h, received, lateOnes := pacedReplica(events)
		replicas := httpReplicas(t)
		for _, r := range replicas {
			r.post.Store(&h)
		}
		fake := newFakeServer(t, func(w http.ResponseWriter, _ *http.Request) { name(w, "r1") })
		f := startHAProxy(t, fake.addr(), fake.addr(), replicas)
		a, err := f.client.Post(f.url+"/v1/chat/completions", "application/json", strings.NewReader(chat("x")))
		require.NoError(t, err)
		lines := bufio.NewScanner(a.Body)
		n := 0
		for lines.Scan() {
			if lines.Text() == "" {
				continue
			}
			require.Equal(t, fmt.Sprint("data: ", n), lines.Text())
			n++
			received <- struct{}{}
		}
		require.NoError(t, lines.Err())
		require.NoError(t, a.Body.Close())
		require.Equal(t, events, n)
		if late = lateOnes(); late == 0 {
			return
		}
	}
	require.Zero(t, late, "events arrived after a second")
}
