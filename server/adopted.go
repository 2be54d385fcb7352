package server

import (
	"context"

	"google.golang.org/grpc/metadata"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

type adoptedKey struct{}

// withAdopted notes whether the client has applied the deployment's percentage already, so that it is not applied
// twice. Metadata is read once for a stream.
func withAdopted(ctx context.Context) context.Context {
	if len(metadata.ValueFromIncomingContext(ctx, warmpathv1.MetadataAdopted)) == 0 {
		return ctx
	}
	return context.WithValue(ctx, adoptedKey{}, true)
}

func adopted(ctx context.Context) bool { return ctx.Value(adoptedKey{}) != nil }
