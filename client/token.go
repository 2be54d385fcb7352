package client

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// tokenAge is how long a token is used before its file is read again.
const tokenAge = 10 * time.Second

// TokenFile returns credentials that send the first line of a file as a bearer token, and read it again every ten
// seconds, so that tokens that are replaced (as Kubernetes does with mounted ones) need no restart. A file that
// cannot be read leaves the token read last; a call fails if there is none. They refuse connections without TLS. Use
// them with [WithServerDialOptions] and [grpc.WithPerRPCCredentials]. Safe for concurrent use.
func TokenFile(path string) credentials.PerRPCCredentials {
	return &tokenFile{path: path, now: time.Now}
}

type tokenFile struct {
	path string
	now  func() time.Time

	mu    sync.Mutex // guards what follows
	token string
	read  time.Time
}

// GetRequestMetadata implements [credentials.PerRPCCredentials].
func (t *tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.now(); t.token == "" || now.Sub(t.read) >= tokenAge {
		raw, err := os.ReadFile(t.path)
		line, _, _ := strings.Cut(string(raw), "\n")
		t.token, t.read = cmp.Or(strings.TrimSpace(line), t.token), now
		switch {
		case t.token != "":
		case err != nil:
			return nil, fmt.Errorf("client: the token: %w", err)
		default:
			return nil, fmt.Errorf("client: the token: the first line of %s is empty", t.path)
		}
	}
	return map[string]string{"authorization": "Bearer " + t.token}, nil
}

// RequireTransportSecurity implements [credentials.PerRPCCredentials].
func (t *tokenFile) RequireTransportSecurity() bool { return true }
