package client

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/channel"
	"github.com/warmpath/warmpath/internal/pause"
)

// refused counts the attempts of a call that replicas refused because they are full:
// RESOURCE_EXHAUSTED before the first message. They are no failures. The next replica in
// the policy's order is asked at once, later ones after a backoff, as long as the call's
// context lasts. A plain refusal, which may mean something else, needs a deadline for that:
// without one it counts as an attempt.
type refused int

// again reports whether an attempt was refused and no more than that, and waits for the
// backoff before the next. It returns false as soon as the context ends.
func (n *refused) again(ctx context.Context, backoff policy.Backoff, err error, last channel.Attempt) (refused, waited bool) {
	if last.Full || last.Replica == nil || status.Code(err) != codes.ResourceExhausted {
		return false, false
	}
	if _, ends := ctx.Deadline(); !ends && !last.Refused {
		return false, false
	}
	*n++
	return true, pause.For(ctx, backoff.Wait(int(*n))) == nil
}

// sizes are the words in which implementations of gRPC refuse a message, or metadata, for
// its size. They do so with RESOURCE_EXHAUSTED, and every replica would.
var sizes = []string{
	"larger than max",            // grpc-go, gRPC's core (C++, Python, Ruby, PHP), grpc-node
	"message too large",          // grpc-go
	"metadata size exceeds",      // gRPC's core
	"exceeds maximum size",       // grpc-java
	"maximum configured message", // grpc-dotnet
	"length too large",           // tonic, which says OUT_OF_RANGE, behind what maps that
	"more than 4GB",              // tonic
}

// oversize reports whether a message of a RESOURCE_EXHAUSTED speaks of a size.
func oversize(message string) bool {
	for _, s := range sizes {
		if strings.Contains(message, s) {
			return true
		}
	}
	return false
}
