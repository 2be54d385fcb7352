package replica

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// unary is the interceptor of unary calls.
func (r *Replica) unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (answer any, err error) {
	trailer := func(t metadata.MD) { _ = grpc.SetTrailer(ctx, t) } // fails only on a call that is gone
	err = r.handle(info.FullMethod, trailer, func() (err error) {
		answer, err = handler(ctx, req)
		return err
	})
	return answer, err
}

// stream is the interceptor of all other calls.
func (r *Replica) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if info.FullMethod == healthWatch {
		_ = s.SetHeader(metadata.Pairs(warmpathv1.HeaderDrains, "1")) // fails only on a call that is gone
	}
	return r.handle(info.FullMethod, s.SetTrailer, func() error { return handler(srv, s) })
}

// handle counts a call while its handler runs, or refuses it, with its trailer.
func (r *Replica) handle(method string, trailer func(metadata.MD), handler func() error) error {
	if !r.counts(method) {
		return handler()
	}
	if n, ok := r.enter(); !ok {
		trailer(r.rejection(n))
		return status.Errorf(codes.ResourceExhausted, "%d requests are ongoing, the most is %d (max_ongoing_requests)", n, r.bound)
	}
	defer func() {
		r.ongoing.Add(-1)
		if !r.cfg.OmitLoad {
			trailer(r.report())
		}
	}()
	return handler()
}

// healthWatch is the method whose header says that a replica which does not serve only drains.
const healthWatch = healthpb.Health_Watch_FullMethodName

// own are the services of gRPC itself. Health must be answered by a full replica, and watches last for ever.
var own = []string{"/grpc.health.", "/grpc.reflection.", "/grpc.channelz.", "/xds.service.orca."}

// counts reports whether a method is a call for the model.
func (r *Replica) counts(method string) bool {
	grpcs := slices.ContainsFunc(own, func(prefix string) bool { return strings.HasPrefix(method, prefix) })
	return !grpcs && (r.cfg.Counts == nil || r.cfg.Counts(method))
}

// enter counts a call in, unless as many as may be are under way: those are n. The comparison and the count are one
// step, so that calls that are being refused never take the room of one that could be served.
func (r *Replica) enter() (n int64, ok bool) {
	for {
		n = r.ongoing.Load()
		if r.bound > 0 && n >= r.bound {
			return n, false
		}
		if r.ongoing.CompareAndSwap(n, n+1) {
			return n + 1, true
		}
	}
}

// rejection is the trailer of a refused call.
func (r *Replica) rejection(n int64) metadata.MD {
	// It cannot fail: there is no text in the message.
	b, _ := proto.Marshal(&warmpathv1.Rejection{Ongoing: uint32(n), MaxOngoing: uint32(r.bound)})
	return metadata.MD{warmpathv1.TrailerRejection: {string(b)}}
}
