package apiserver

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
)

// shared is the server of all tests of a package; the first that wants it starts it.
var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// Shared returns the server of all tests of a package, whose TestMain runs [Main]. Tests that stop its API server start
// it again, and run alone. The test is skipped where the programs are missing.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.once.Do(func() { shared.server, shared.err = Start(context.Background()) })
	switch {
	case errors.Is(shared.err, ErrMissing) && os.Getenv("WARMPATH_REQUIRE_ALL") == "":
		t.Skip(shared.err)
	case shared.err != nil:
		t.Fatal(shared.err)
	}
	return shared.server
}

// Main is a [testing.M] that closes the server of [Shared] after the tests.
type Main struct{ *testing.M }

// Run runs the tests.
func (m Main) Run() int {
	code := m.M.Run()
	if shared.server != nil {
		shared.server.Close()
	}
	return code
}
