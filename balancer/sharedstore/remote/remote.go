// Package remote is a [sharedstore.Store] in a look-aside server, for policies that run in clients.
package remote

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/sharedstore"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Store is the store of one deployment. Besides the errors of [sharedstore.Store] its calls return gRPC statuses, as when the
// server cannot be reached.
type Store struct {
	client     warmpathv1.StoreServiceClient
	deployment string
}

var _ sharedstore.Store = (*Store)(nil)

// New returns the store of a deployment, empty = the server's only one, over a connection to a look-aside server, which stays
// the caller's.
func New(conn grpc.ClientConnInterface, deployment string) *Store {
	return &Store{client: warmpathv1.NewStoreServiceClient(conn), deployment: deployment}
}

// Get implements [sharedstore.Store].
func (s *Store) Get(ctx context.Context, key string) (sharedstore.Entry, error) {
	a, err := s.client.Get(ctx, &warmpathv1.GetRequest{Deployment: s.deployment, Key: key})
	if err != nil {
		return sharedstore.Entry{}, known(err)
	}
	return sharedstore.Entry{Value: a.GetValue(), Version: a.GetVersion(), TTL: time.Duration(a.GetTtlMs()) * time.Millisecond}, nil
}

// Set implements [sharedstore.Store].
func (s *Store) Set(ctx context.Context, key string, value []byte, ttl time.Duration) (uint64, error) {
	a, err := s.client.Set(ctx, &warmpathv1.SetRequest{Deployment: s.deployment, Key: key, Value: value, TtlMs: millis(ttl)})
	return a.GetVersion(), known(err)
}

// CompareAndSet implements [sharedstore.Store].
func (s *Store) CompareAndSet(ctx context.Context, key string, version uint64, value []byte, ttl time.Duration) (uint64, error) {
	a, err := s.client.CompareAndSet(ctx, &warmpathv1.CompareAndSetRequest{
		Deployment: s.deployment, Key: key, Version: version, Value: value, TtlMs: millis(ttl),
	})
	return a.GetVersion(), known(err)
}

// Delete implements [sharedstore.Store].
func (s *Store) Delete(ctx context.Context, key string) error {
	_, err := s.client.Delete(ctx, &warmpathv1.DeleteRequest{Deployment: s.deployment, Key: key})
	return known(err)
}

// millis rounds up: 0 would be the longest there is.
func millis(ttl time.Duration) uint64 {
	if ttl <= 0 {
		return 0
	}
	return uint64((min(ttl, sharedstore.MaxTTL) + time.Millisecond - 1) / time.Millisecond)
}

// known returns the errors that a store has. A deployment that is not there is no missing key: its message is kept.
func known(err error) error {
	switch code := status.Code(err); {
	case err == nil:
		return nil
	case code == codes.NotFound && status.Convert(err).Message() == sharedstore.ErrNotFound.Error():
		return sharedstore.ErrNotFound
	case code == codes.Aborted:
		return sharedstore.ErrConflict
	case code == codes.InvalidArgument && status.Convert(err).Message() == sharedstore.ErrInvalid.Error():
		return sharedstore.ErrInvalid
	}
	return fmt.Errorf("sharedstore: %w", err)
}
