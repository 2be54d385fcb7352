package server

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// One host gets half of the connections; the rest are closed at once, and a free place is used again.
func TestConnectionsAreBounded(t *testing.T) {
	f := start(t, "max_connections: 7\n"+quiet)
	f.choose(t, new(warmpathv1.ChooseReplicaRequest)) // the first of four
	dial := func() net.Conn {
		c, err := net.Dial("tcp", f.conn.Target())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	served := func(c net.Conn) bool { // the server sends first, unless it closes
		require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
		_, err := io.ReadFull(c, make([]byte, 9))
		return err == nil
	}
	var held []net.Conn
	for range 3 {
		c := dial()
		_, err := c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
		require.NoError(t, err)
		require.True(t, served(c))
		held = append(held, c)
	}
	for range 20 {
		require.False(t, served(dial()))
	}
	f.choose(t, new(warmpathv1.ChooseReplicaRequest))
	require.NoError(t, held[0].Close())
	require.Eventually(t, func() bool {
		c := dial()
		_, _ = c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
		return served(c)
	}, 20*time.Second, time.Millisecond)
}

func TestHostsHaveAHalf(t *testing.T) {
	l := newBoundedListener(nil, 4, discard)
	require.True(t, l.count("a", 1))
	require.True(t, l.count("a", 1))
	require.False(t, l.count("a", 1))
	require.True(t, l.count("b", 1))
	require.True(t, l.count("c", 1))
	require.False(t, l.count("d", 1), "all are taken")
	l.count("b", -1)
	require.True(t, l.count("d", 1))
	for _, host := range []string{"a", "a", "c", "d"} {
		l.count(host, -1)
	}
	require.Equal(t, map[string]int{"": 0}, l.open)
}
