package server

import (
	"context"
	"errors"
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Get implements the store for policies that run elsewhere.
func (s services) Get(ctx context.Context, r *warmpathv1.GetRequest) (*warmpathv1.GetResponse, error) {
	d, err := s.named(s.principalOf(ctx), r.GetDeployment())
	if err != nil {
		return nil, err
	}
	e, err := d.picks.store.Get(ctx, r.GetKey())
	if err != nil && !errors.Is(err, policy.ErrNotFound) { // an entry that does not exist has version 0
		return nil, storeStatus(err)
	}
	return &warmpathv1.GetResponse{Value: e.Value, Version: e.Version, TtlMs: uint64(e.TTL.Milliseconds())}, nil
}

// Set implements the service.
func (s services) Set(ctx context.Context, r *warmpathv1.SetRequest) (*warmpathv1.SetResponse, error) {
	d, err := s.named(s.principalOf(ctx), r.GetDeployment())
	if err != nil {
		return nil, err
	}
	version, err := d.picks.store.Set(ctx, r.GetKey(), r.GetValue(), ttlOf(r.GetTtlMs()))
	return &warmpathv1.SetResponse{Version: version}, storeStatus(err)
}

// CompareAndSet implements the service.
func (s services) CompareAndSet(
	ctx context.Context, r *warmpathv1.CompareAndSetRequest,
) (*warmpathv1.CompareAndSetResponse, error) {
	d, err := s.named(s.principalOf(ctx), r.GetDeployment())
	if err != nil {
		return nil, err
	}
	ttl := ttlOf(r.GetTtlMs())
	version, err := d.picks.store.CompareAndSet(ctx, r.GetKey(), r.GetVersion(), r.GetValue(), ttl)
	return &warmpathv1.CompareAndSetResponse{Version: version}, storeStatus(err)
}

// Delete implements the service.
func (s services) Delete(ctx context.Context, r *warmpathv1.DeleteRequest) (*warmpathv1.DeleteResponse, error) {
	d, err := s.named(s.principalOf(ctx), r.GetDeployment())
	if err != nil {
		return nil, err
	}
	return new(warmpathv1.DeleteResponse), storeStatus(d.picks.store.Delete(ctx, r.GetKey()))
}

// ttlOf is the TTL of a message; 0 = the longest. One that is too long stays so.
func ttlOf(ms uint64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond
}

// storeStatus returns the status of a store's error. The store in memory fails with the errors of [policy.Store] only, so
// any other error comes from a store that cannot be reached.
func storeStatus(err error) error {
	code := codes.Unavailable
	switch {
	case err == nil:
		return nil
	case errors.Is(err, policy.ErrConflict):
		code = codes.Aborted
	case errors.Is(err, policy.ErrInvalid):
		code = codes.InvalidArgument
	}
	return status.Error(code, err.Error())
}
