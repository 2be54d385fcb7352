package sharedstore

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// client is the store of one deployment of a look-aside server.
type client struct {
	rpc        warmpathv1.StoreServiceClient
	deployment string
}

// NewClient returns the store of a deployment, empty = the server's only one, over a connection to a look-aside
// server, which the caller closes: for policies that run elsewhere. Besides the errors of [Store] its calls return gRPC
// statuses, as when the server cannot be reached.
func NewClient(conn grpc.ClientConnInterface, deployment string) Store {
	return &client{rpc: warmpathv1.NewStoreServiceClient(conn), deployment: deployment}
}

// Get implements [Store].
func (c *client) Get(ctx context.Context, key string) (Entry, error) {
	a, err := c.rpc.Get(ctx, &warmpathv1.GetRequest{Deployment: c.deployment, Key: key})
	switch {
	case err != nil:
		return Entry{}, known(err)
	case a.GetVersion() == 0:
		return Entry{}, ErrNotFound
	}
	return Entry{Value: a.GetValue(), Version: a.GetVersion(), TTL: time.Duration(a.GetTtlMs()) * time.Millisecond}, nil
}

// Set implements [Store].
func (c *client) Set(ctx context.Context, key string, value []byte, ttl time.Duration) (uint64, error) {
	if err := check(key, value); err != nil {
		return 0, err
	}
	a, err := c.rpc.Set(ctx, &warmpathv1.SetRequest{Deployment: c.deployment, Key: key, Value: value, TtlMs: millis(ttl)})
	return a.GetVersion(), known(err)
}

// CompareAndSet implements [Store].
func (c *client) CompareAndSet(
	ctx context.Context, key string, version uint64, value []byte, ttl time.Duration,
) (uint64, error) {
	if err := check(key, value); err != nil {
		return 0, err
	}
	a, err := c.rpc.CompareAndSet(ctx, &warmpathv1.CompareAndSetRequest{
		Deployment: c.deployment, Key: key, Version: version, Value: value, TtlMs: millis(ttl),
	})
	return a.GetVersion(), known(err)
}

// Delete implements [Store].
func (c *client) Delete(ctx context.Context, key string) error {
	_, err := c.rpc.Delete(ctx, &warmpathv1.DeleteRequest{Deployment: c.deployment, Key: key})
	return known(err)
}

// millis rounds up: 0 would be the longest there is.
func millis(ttl time.Duration) uint64 {
	if ttl <= 0 {
		return 0
	}
	return uint64((min(ttl, maxTTL) + time.Millisecond - 1) / time.Millisecond)
}

func known(err error) error {
	switch status.Code(err) {
	case codes.OK:
		return nil
	case codes.Aborted:
		return ErrConflict
	}
	return fmt.Errorf("sharedstore: %w", err)
}
