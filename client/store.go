package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// store is the store of one deployment of a look-aside server.
type store struct {
	rpc        warmpathv1.StoreServiceClient
	deployment string
}

// NewStore returns the store of a deployment, empty = the server's only one, over a connection to a look-aside
// server, which the caller closes: for policies that run elsewhere. Besides the errors of [policy.Store] its calls
// return gRPC statuses, as when the server cannot be reached.
func NewStore(conn grpc.ClientConnInterface, deployment string) policy.Store {
	return &store{rpc: warmpathv1.NewStoreServiceClient(conn), deployment: deployment}
}

// Get implements [policy.Store].
func (s *store) Get(ctx context.Context, key string) (policy.Entry, error) {
	a, err := s.rpc.Get(ctx, &warmpathv1.GetRequest{Deployment: s.deployment, Key: key})
	switch {
	case err != nil:
		return policy.Entry{}, failure(err)
	case a.GetVersion() == 0:
		return policy.Entry{}, policy.ErrNotFound
	}
	ttl := time.Duration(a.GetTtlMs()) * time.Millisecond
	return policy.Entry{Value: a.GetValue(), Version: a.GetVersion(), TTL: ttl}, nil
}

// Set implements [policy.Store].
func (s *store) Set(ctx context.Context, key string, value []byte, ttl time.Duration) (uint64, error) {
	a, err := s.rpc.Set(ctx, &warmpathv1.SetRequest{Deployment: s.deployment, Key: key, Value: value, TtlMs: millis(ttl)})
	return a.GetVersion(), failure(err)
}

// CompareAndSet implements [policy.Store].
func (s *store) CompareAndSet(
	ctx context.Context, key string, version uint64, value []byte, ttl time.Duration,
) (uint64, error) {
	a, err := s.rpc.CompareAndSet(ctx, &warmpathv1.CompareAndSetRequest{
		Deployment: s.deployment, Key: key, Version: version, Value: value, TtlMs: millis(ttl),
	})
	return a.GetVersion(), failure(err)
}

// Delete implements [policy.Store].
func (s *store) Delete(ctx context.Context, key string) error {
	_, err := s.rpc.Delete(ctx, &warmpathv1.DeleteRequest{Deployment: s.deployment, Key: key})
	return failure(err)
}

// millis rounds up: 0 would be the longest there is.
func millis(ttl time.Duration) uint64 {
	if ttl <= 0 {
		return 0
	}
	return uint64((ttl-1)/time.Millisecond) + 1
}

// failure is the error of a call: one of package policy, or a gRPC status.
func failure(err error) error {
	switch status.Code(err) {
	case codes.OK:
		return nil
	case codes.Aborted:
		return policy.ErrConflict
	case codes.InvalidArgument:
		return fmt.Errorf("%w: %w", policy.ErrInvalid, err)
	}
	return fmt.Errorf("store: %w", err)
}
