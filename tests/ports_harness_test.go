package tests

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// ports counts those that listenLoopback has tried: no two tests get the same.
var ports atomic.Int64

// listenLoopback listens on a port below the range of ephemeral ports, and below those of other packages' tests. So the
// port of a stopped server stays free: until the server is back, or as long as a test needs an address without a
// listener.
func listenLoopback(t testing.TB) net.Listener {
	t.Helper()
	for range 1_000 {
		port := 10_000 + (os.Getpid()*101+int(ports.Add(1)))%10_000
		if lis, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port)); err == nil {
			return lis
		}
	}
	require.Fail(t, "no port is free")
	return nil
}

// listenAt listens at an address that was in use, once that is free.
func listenAt(t testing.TB, address string) (lis net.Listener) {
	t.Helper()
	eventually(t, "the address is free", func() (ok bool) {
		var err error
		lis, err = net.Listen("tcp", address)
		return err == nil
	})
	return lis
}

// freeAddr is for a program that cannot take port 0, and for an address without a listener.
func freeAddr(t testing.TB) string {
	t.Helper()
	lis := listenLoopback(t)
	require.NoError(t, lis.Close())
	return lis.Addr().String()
}
