package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpath "github.com/warmpath/warmpath/client"
)

// A client's store is that of its deployment alone, with its errors.
func TestStore(t *testing.T) {
	f := start(t, `
load_interval: 10s
deployments:
  chat: {replicas: [{address: "h:1"}]}
  code: {replicas: [{address: "h:1"}]}
`)
	ctx := soon(t)
	s := warmpath.NewStore(f.conn, "chat")
	_, err := s.Get(ctx, "k")
	require.ErrorIs(t, err, policy.ErrNotFound)
	version, err := s.Set(ctx, "k", []byte("v"), time.Minute)
	require.NoError(t, err)
	e, err := s.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, policy.Entry{Value: []byte("v"), Version: version, TTL: time.Minute}, e)
	own, err := f.deployment("chat").picks.store.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, e, own, "the policy in the server sees the same")
	_, err = warmpath.NewStore(f.conn, "code").Get(ctx, "k")
	require.ErrorIs(t, err, policy.ErrNotFound, "another deployment's policies do not")

	_, err = s.CompareAndSet(ctx, "k", version+1, nil, 0)
	require.ErrorIs(t, err, policy.ErrConflict)
	_, err = s.CompareAndSet(ctx, "k", version, []byte("w"), time.Nanosecond)
	require.NoError(t, err)
	f.advance(time.Millisecond)
	_, err = s.Get(ctx, "k")
	require.ErrorIs(t, err, policy.ErrNotFound, "it has expired, however short its time")
	require.NoError(t, s.Delete(ctx, "k"))

	_, err = s.Set(ctx, "k", make([]byte, 64<<10+1), 0)
	require.ErrorIs(t, err, policy.ErrInvalid)

	_, err = warmpath.NewStore(f.conn, "none").Get(ctx, "k")
	require.Equal(t, codes.NotFound, status.Code(err))
	require.NotErrorIs(t, err, policy.ErrNotFound)
	_, err = warmpath.NewStore(f.conn, "").Get(ctx, "k")
	require.Equal(t, codes.InvalidArgument, status.Code(err), "which one?")
}
