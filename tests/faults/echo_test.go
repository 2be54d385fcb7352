package faults

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// replicaAt in the environment makes this binary a replica that only listens at this address.
const replicaAt = "WARMPATH_TEST_REPLICA"

// echo is a replica that answers at once.
type echo struct {
	testpb.UnimplementedTestServiceServer
}

func (echo) EmptyCall(context.Context, *testpb.Empty) (*testpb.Empty, error) {
	return new(testpb.Empty), nil
}

func (echo) UnaryCall(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return new(testpb.SimpleResponse), nil
}

func (echo) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	return s.Send(new(testpb.StreamingOutputCallResponse))
}

// serveReplica serves until the process is killed, and prints a line when it is ready.
func serveReplica(addr string) error {
	lis, err := new(net.ListenConfig).Listen(context.Background(), "tcp", addr)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	testpb.RegisterTestServiceServer(s, echo{})
	fmt.Println("listens")
	return s.Serve(lis)
}
