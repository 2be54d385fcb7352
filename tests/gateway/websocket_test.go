package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// A websocket passes through, both ways, and is load until it ends.
func TestWebsocket(t *testing.T) {
	for _, m := range []modes{
		{}, {response: "STREAMED"}, {response: "NONE"},
		{request: "BUFFERED", response: "STREAMED", upgrades: true}, // Envoy waits for the whole body otherwise
	} {
		t.Run(m.String(), func(t *testing.T) {
			engines := startEngines(t)
			p := startPicker(t, engines, "")
			e := startEnvoy(t, p, engines, m)
			answer(engines, func(w http.ResponseWriter, r *http.Request) {
				conn, both, err := http.NewResponseController(w).Hijack()
				if err != nil {
					return
				}
				defer conn.Close()
				fmt.Fprint(both, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
				_ = both.Flush()
				for {
					line, err := both.ReadString('\n')
					if err != nil {
						return
					}
					fmt.Fprint(both, "echo ", line)
					_ = both.Flush()
				}
			})
			conn, err := net.Dial("tcp", e.address)
			require.NoError(t, err)
			defer conn.Close()
			fmt.Fprint(conn, "GET /v1/realtime HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
				"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")
			in := bufio.NewReader(conn)
			a, err := http.ReadResponse(in, nil)
			require.NoError(t, err)
			require.Equal(t, http.StatusSwitchingProtocols, a.StatusCode)
			for n := range 5 {
				fmt.Fprintf(conn, "line %d\n", n)
				line, err := in.ReadString('\n')
				require.NoError(t, err)
				require.Equal(t, fmt.Sprintf("echo line %d\n", n), line)
			}
			if !m.upgrades {
				eventually(t, func() bool { return p.ongoing() == 1 }, "it is load")
			}
			require.NoError(t, conn.(*net.TCPConn).CloseWrite())
			_, err = io.Copy(io.Discard, in)
			require.NoError(t, err)
			if m.response != "NONE" {
				p.idle()
			}
		})
	}
}
