package tests

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A crowd is a set of replicas that take two calls each and refuse the others. No config states this limit.
type crowd struct {
	rs  []*replica
	end chan struct{}

	mu      sync.Mutex        // guards what follows
	inside  map[string]string // address of the replica that has a call, by the call's name
	refused int
	broken  int
}

func startCrowd(t *testing.T, n int) *crowd {
	t.Helper()
	const most = 2
	full, err := proto.Marshal(&warmpathv1.Rejection{Ongoing: most, MaxOngoing: most})
	require.NoError(t, err)
	c := &crowd{end: make(chan struct{}), inside: map[string]string{}}
	for range n {
		r := new(replica)
		r.unary = func(ctx context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			name := string(q.GetPayload().GetBody())
			if name == "" || name == "x" {
				return &testpb.SimpleResponse{Username: r.addr}, nil
			}
			if err := c.enter(name, r.addr, most); err != nil {
				if status.Code(err) == codes.ResourceExhausted && name[0]%2 == 0 {
					_ = grpc.SetTrailer(ctx, metadata.Pairs(warmpathv1.TrailerRejection, string(full)))
				}
				return nil, err
			}
			defer c.leave(name)
			select {
			case <-c.end:
				return new(testpb.SimpleResponse), nil
			case <-ctx.Done():
				return nil, status.FromContextError(ctx.Err()).Err()
			}
		}
		c.rs = append(c.rs, start(t, r))
	}
	return c
}

func (c *crowd) enter(name, addr string, most int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	there := 0
	for _, at := range c.inside {
		if at == addr {
			there++
		}
	}
	switch {
	case there >= most:
		c.refused++
		return status.Error(codes.ResourceExhausted, "busy")
	case c.broken < 5: // some attempts fail for another reason
		c.broken++
		return status.Error(codes.Unavailable, "down")
	}
	c.inside[name] = addr
	return nil
}

func (c *crowd) leave(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.inside, name)
}

func (c *crowd) has(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inside[name] != ""
}

func (c *crowd) ongoing() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]int{}
	for _, addr := range c.inside {
		all[addr]++
	}
	return all
}

// After a storm of refusals, failures and the clients' own choices, the server's reservations match the calls under
// way. At the end it has none.
func TestCentralReservationsAfterAStorm(t *testing.T) {
	c := startCrowd(t, 3)
	at, _ := lookasideWith(t, "", centralised(`{power_of_two_choices: {}}`, c.rs, "retry_ratio: off"))
	seen := observe(t, at)
	cancels := map[string]context.CancelFunc{}
	var calls sync.WaitGroup
	for i := range 3 {
		cc := dial(t, "warmpath://"+at+"/chat")
		connected(t, cc, c.rs)
		untilCentral(t, cc)
		for j := range 8 {
			name := string(rune('a'+8*i+j)) + " call"
			ctx, cancel := context.WithCancel(deadline(t))
			cancels[name] = cancel
			calls.Go(func() { _, _ = testpb.NewTestServiceClient(cc).UnaryCall(ctx, simple(name)) })
		}
	}
	eventually(t, "a storm", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.inside) == 6 && c.refused >= 100
	})
	for name, cancel := range cancels {
		if !c.has(name) {
			cancel()
		}
	}
	eventually(t, "the server has a reservation for each call under way", func() bool { return seen.sees(c.ongoing()) })
	require.Len(t, c.ongoing(), 3)
	close(c.end)
	calls.Wait()
	eventually(t, "nothing is left", func() bool { return seen.sees(map[string]int{}) })
	for _, r := range c.rs {
		eventually(t, "nor a load", func() bool { return serverLoad(t, at, r) == 0 })
	}
	for _, cancel := range cancels {
		cancel()
	}
}
