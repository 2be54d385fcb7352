package server

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// The cost of tokens: allocations of client and server together.
func BenchmarkChooseWithAToken(b *testing.B) {
	f := start(b, siege)
	for _, principal := range []struct{ name, token string }{{"known", goodToken}, {"wrong token", "wrong-0123456789abc"}} {
		b.Run(principal.name, func(b *testing.B) {
			pb := f.with(b, principal.token)
			request := &warmpathv1.ChooseReplicaRequest{Deployment: "goods", Mode: query}
			want := codes.OK
			if principal.token != goodToken {
				want = codes.Unauthenticated
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				_, err := pb.ChooseReplica(context.Background(), request)
				if status.Code(err) != want {
					require.NoError(b, err)
				}
				if i%500 == 499 { // room for more
					f.clock.advance(1e9)
					f.tick("goods")
				}
			}
		})
	}
}
