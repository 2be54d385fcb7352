package tests

import (
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	clientside "github.com/warmpath/warmpath/internal/lookaside"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/server"
)

// A new client learns the whole fleet, and then each change, however large the descriptions are together.
func TestLookasideLargeDescriptions(t *testing.T) {
	for _, of := range []struct{ replicas, adapters int }{{10_000, 19}, {100, 1230}} { // of 200 bytes
		t.Run(fmt.Sprint(of.replicas), func(t *testing.T) {
			c, err := server.ParseConfig([]byte("deployments: {chat: {register: true, policy: {power_of_two_choices: {}}}}"))
			require.NoError(t, err)
			s, err := server.New(c, server.Options{Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			ended := make(chan error, 1)
			go func() { ended <- s.Serve(lis) }()
			t.Cleanup(func() { s.Close(); require.NoError(t, <-ended) })
			address := lis.Addr().String()
			plain := grpc.WithTransportCredentials(insecure.NewCredentials())
			conn, err := grpc.NewClient(address, plain)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, conn.Close()) })
			stub := warmpathv1.NewRoutingServiceClient(conn)

			beat := func(i int, draining bool) error {
				r := &warmpathv1.Replica{Id: fmt.Sprint("r", i), Address: fmt.Sprintf("10.0.%d.%d:1", i>>8, i&255), Draining: draining}
				for k := range of.adapters {
					r.Adapters = append(r.Adapters, fmt.Sprintf("%0200d", k))
				}
				_, err := stub.Register(t.Context(), &warmpathv1.RegisterRequest{Replica: r, LeaseMs: 3_600_000})
				return err
			}
			var registering errgroup.Group
			registering.SetLimit(200)
			for i := range of.replicas {
				registering.Go(func() error { return beat(i, false) })
			}
			require.NoError(t, registering.Wait())

			states := make(chan clientside.State, 1000)
			w, err := clientside.Start(clientside.Options{
				Servers: []string{address}, Deployment: "chat", Dial: []grpc.DialOption{plain}, Logger: slog.New(slog.DiscardHandler),
				Changed: func(_ *clientside.Watch, s clientside.State) { states <- s },
				Failed:  func(error) {},
			})
			require.NoError(t, err)
			defer w.Close()
			next := func() clientside.State {
				select {
				case s := <-states:
					return s
				case <-time.After(2 * time.Minute):
					require.Fail(t, "no state")
					panic("unreachable")
				}
			}
			first := next()
			require.Len(t, first.Replicas, of.replicas, "the first state is the whole fleet")
			require.Len(t, first.Replicas[0].Adapters, of.adapters)
			require.NoError(t, beat(7, true))
			second := next()
			require.Len(t, second.Replicas, of.replicas)
			drained := 0
			for _, r := range second.Replicas {
				if r.Draining {
					drained++
					require.Equal(t, "r7", r.ID)
				}
			}
			require.Equal(t, 1, drained)
		})
	}
}
