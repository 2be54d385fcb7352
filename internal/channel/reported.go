package channel

import (
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/routing"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Ended ends the booking of a call that has ended, and gives its Router what the replica
// said of itself in the trailer: its load, or how full it was when it refused. It reports
// whether it refused.
func Ended(b *routing.Booking, done balancer.DoneInfo) (refused bool) {
	if report, ok := refusal(done); ok {
		b.Refused(report)
		return true
	}
	b.Release()
	if r := b.Router(); r != nil {
		reported(r, b.Decision.Replica, done)
	}
	return false
}

// EndedQuick is Ended for a quick booking.
func EndedQuick(r *routing.Router, replica *routing.Replica, done balancer.DoneInfo) {
	if report, ok := refusal(done); ok {
		r.RefusedQuick(replica, report)
		return
	}
	r.ReleaseQuick(replica)
}

// reported gives the Router the replica's load, if it told and the policy can use it.
func reported(r *routing.Router, replica *routing.Replica, done balancer.DoneInfo) {
	if len(done.Trailer) == 0 {
		return
	}
	if raw := done.Trailer[warmpathv1.TrailerLoad]; len(raw) > 0 {
		r.Report(replica.ID, parseOrca([]byte(raw[0])))
	}
}

// refusal returns what a replica said that refused because it is full. A plain
// RESOURCE_EXHAUSTED may be anything, and so may one that names no bound.
func refusal(done balancer.DoneInfo) (report routing.ReplicaReport, ok bool) {
	if done.Err == nil || len(done.Trailer) == 0 || status.Code(done.Err) != codes.ResourceExhausted {
		return report, false
	}
	raw := done.Trailer[warmpathv1.TrailerRejection]
	if len(raw) == 0 {
		return report, false
	}
	return parseRejection([]byte(raw[0]))
}

// parseRejection reads a serialised Rejection. One that does not say what bound was
// reached says nothing.
func parseRejection(b []byte) (routing.ReplicaReport, bool) {
	var r warmpathv1.Rejection
	if proto.Unmarshal(b, &r) != nil || r.GetMaxOngoing() == 0 {
		return routing.ReplicaReport{}, false
	}
	return routing.ReplicaReport{Ongoing: int(r.GetOngoing()), QueuedTokens: -1}, true
}
