package tests

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/server"
)

// reader is a policy that reads the request: its header x-tier, and its message.
type reader struct {
	mu       sync.Mutex
	messages []any
	tiers    [][]string
}

func (p *reader) choose(q *policy.Request, v policy.View) policy.Decision {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.messages, p.tiers = append(p.messages, q.Message()), append(p.tiers, q.Header("X-Tier"))
	if r := v.LeastLoaded(q); r != nil {
		return policy.To(r, policy.ReasonLeastLoaded)
	}
	return policy.Wait()
}

// last returns what the policy read of the last request.
func (p *reader) last() (message any, tier []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.messages) - 1
	return p.messages[n], p.tiers[n]
}

func reading(name string) *reader {
	p := &reader{}
	policy.Register(name, func(struct{}) (policy.Policy, error) { return policy.Policy{Choose: p.choose}, nil })
	return p
}

// Issue 12.21: a custom policy reads the message and the metadata of a call, and without interceptors only the
// metadata.
func TestPolicyReadsTheRequest(t *testing.T) {
	name := unique("reading_client")
	p := reading(name)
	r := start(t, &replica{})
	cc := dial(t, target(r), client.WithConfig(`{"policy":{"`+name+`":{}}}`))
	ctx := metadata.AppendToOutgoingContext(deadline(t), "x-tier", "gold", "x-tier", "late")
	tiers := []string{"gold", "late"}

	asked := simple("a question")
	_, err := testpb.NewTestServiceClient(cc).UnaryCall(ctx, asked)
	require.NoError(t, err)
	message, tier := p.last()
	require.Same(t, asked, message)
	require.Equal(t, tiers, tier)

	streamed := prompt("a question")
	_, err = read(testpb.NewTestServiceClient(cc).StreamingOutputCall(ctx, streamed))
	require.NoError(t, err)
	message, tier = p.last()
	require.Same(t, streamed, message)
	require.Equal(t, tiers, tier)

	bare, err := grpc.NewClient(target(r), insecureOption(),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"warmpath":{"policy":{"`+name+`":{}}}}]}`))
	require.NoError(t, err)
	defer bare.Close()
	_, err = testpb.NewTestServiceClient(bare).UnaryCall(ctx, asked, grpc.WaitForReady(true))
	require.NoError(t, err)
	message, tier = p.last()
	require.Nil(t, message)
	require.Equal(t, tiers, tier)
}

// Issue 12.21: in the server a custom policy reads body and headers at the HTTP endpoint. There is no message if a
// client sends only its key.
func TestPolicyReadsTheRequestInTheServer(t *testing.T) {
	name := unique("reading_server")
	p := reading(name)
	r := start(t, &replica{})
	c, err := server.ParseConfig([]byte("http: {listen: '127.0.0.1:0'}\ndeployments:\n  chat:\n    policy: {" + name + ": {}}\n    replicas: [{address: '" + r.addr + "'}]\n"))
	require.NoError(t, err)
	s, err := server.New(c, server.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	l := listenLoopback(t)
	routing := listenLoopback(t)
	served := make(chan error, 2)
	go func() { served <- s.ServeRoutes(l) }()
	go func() { served <- s.Serve(routing) }()
	defer func() {
		http.DefaultClient.CloseIdleConnections()
		s.Close()
		require.NoError(t, errors.Join(<-served, <-served))
	}()
	const body = `{"model":"m","prompt":"a question","tier":"own field"}`
	question, err := http.NewRequestWithContext(deadline(t), http.MethodPost, "http://"+l.Addr().String()+"/internal/route", strings.NewReader(body))
	require.NoError(t, err)
	question.Header.Set("x-tier", "gold")
	response, err := http.DefaultClient.Do(question)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, "%s", text)
	message, tier := p.last()
	require.Equal(t, []byte(body), message)
	require.Equal(t, []string{"gold"}, tier)

	conn, err := grpc.NewClient(routing.Addr().String(), insecureOption())
	require.NoError(t, err)
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(deadline(t), "x-tier", "silver")
	_, err = warmpathv1.NewRoutingServiceClient(conn).ChooseReplica(ctx, &warmpathv1.ChooseReplicaRequest{
		Key: &warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_BlockHashes{BlockHashes: &warmpathv1.BlockHashes{
			Hashes: []uint64{1}, Block: &warmpathv1.BlockHashes_BlockTokens{BlockTokens: 16},
		}}},
	})
	require.NoError(t, err)
	message, tier = p.last()
	require.Nil(t, message)
	require.Equal(t, []string{"silver"}, tier)
}
