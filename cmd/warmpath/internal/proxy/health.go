package proxy

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// HealthService is the service whose health is the proxy's own: it serves while a replica is connected. The health of
// any other service is a replica's.
const HealthService = "warmpath"

// asksForOwnHealth reports whether a call is not one for a replica.
func (x *passage) asksForOwnHealth(method string) bool {
	if method != healthpb.Health_Check_FullMethodName && method != healthpb.Health_Watch_FullMethodName ||
		len(x.requests) != 1 {
		return false
	}
	var q healthpb.HealthCheckRequest
	return proto.Unmarshal(x.requests[0].Materialize(), &q) == nil && q.GetService() == HealthService
}

// ownHealth answers with the proxy's own health: once, or each time that it changes.
func (x *passage) ownHealth(method string) error {
	conn := x.proxy.conn
	for last := healthpb.HealthCheckResponse_UNKNOWN; ; {
		state, is := conn.GetState(), healthpb.HealthCheckResponse_NOT_SERVING
		if state == connectivity.Ready || state == connectivity.Idle { // an idle channel connects for a call
			is = healthpb.HealthCheckResponse_SERVING
		}
		if is != last {
			raw, err := proto.Marshal(&healthpb.HealthCheckResponse{Status: is})
			if err != nil {
				return status.Error(codes.Internal, err.Error())
			}
			if err := x.in.SendMsg(&mem.BufferSlice{mem.SliceBuffer(raw)}); err != nil {
				return err
			}
			last = is
		}
		if method == healthpb.Health_Check_FullMethodName {
			return nil
		}
		if !conn.WaitForStateChange(x.ctx, state) {
			return status.FromContextError(x.ctx.Err()).Err()
		}
	}
}
