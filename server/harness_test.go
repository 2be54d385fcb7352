package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/internal/httpendpoint"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/server"
)

// served is a server on the loopback, as clients see it.
type served struct {
	server  *server.Server
	conn    *grpc.ClientConn
	routing warmpathv1.RoutingServiceClient
	status  warmpathv1.StatusServiceClient
	http    string // URL of POST /internal/route; empty where the config has no http.listen
	log     *logged
}

// logged is what a server logs, line by line in JSON.
type logged struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// lines returns the lines with a message that contains text.
func (l *logged) lines(t testing.TB, text string) (all []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		var fields map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &fields))
		if strings.Contains(fields["msg"].(string), text) {
			all = append(all, fields)
		}
	}
	return all
}

func serve(t testing.TB, config string, tracer trace.TracerProvider) *served {
	t.Helper()
	c := parseConfig(t, config)
	s := &served{log: new(logged)}
	var err error
	s.server, err = server.New(c, server.Options{Logger: slog.New(slog.NewJSONHandler(s.log, nil)), Tracer: tracer})
	require.NoError(t, err)
	ended := make(chan error, 2)
	lis := listen(t)
	go func() { ended <- s.server.Serve(lis) }()
	if c.HTTP.Listen == "" {
		ended <- nil
	} else {
		lis := listen(t)
		s.http = "http://" + lis.Addr().String() + httpendpoint.RoutePath
		go func() { ended <- s.server.ServeRoutes(lis) }()
	}
	s.conn, err = grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	s.routing, s.status = warmpathv1.NewRoutingServiceClient(s.conn), warmpathv1.NewStatusServiceClient(s.conn)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		require.NoError(t, s.conn.Close())
		s.server.Close()
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
	})
	return s
}

func parseConfig(t testing.TB, config string) *server.Config {
	t.Helper()
	c, err := server.ParseConfig([]byte(server.WithTokens(t, config)))
	require.NoError(t, err)
	return c
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return lis
}

// soon is a context for operations that take no time.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// post makes a request over HTTP, and returns the status with the decoded answer.
func (s *served) post(t testing.TB, body string, headers ...string) (code int, answer map[string]any) {
	t.Helper()
	r, err := http.NewRequestWithContext(soon(t), http.MethodPost, s.http, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	a, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer a.Body.Close()
	require.NoError(t, json.NewDecoder(a.Body).Decode(&answer))
	return a.StatusCode, answer
}
