// Package freeport finds ports for servers that are started later, or restarted at their address.
package freeport

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
)

// The range is below that of ephemeral ports: a program that asks for any port gets none of these.
const first, size = 20_000, 12_000

// tried counts the ports that were tried, so that no two callers in a program get the same.
var tried atomic.Int64

// Find returns n ports at which nothing listens. They stay free until the caller listens there, and while it restarts
// what listened. It panics where there are no more.
func Find(n int) (all []int) {
	for range size {
		port := first + (os.Getpid()*101+int(tried.Add(1)))%size
		if l, err := net.Listen("tcp", fmt.Sprint(":", port)); err == nil {
			_ = l.Close()
			all = append(all, port)
		}
		if len(all) == n {
			return all
		}
	}
	panic("freeport: too few are free")
}
