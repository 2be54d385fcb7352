// Package sharedstore is a small store that custom policies share: which replica a session has, say, or a counter for
// all clients. It lives in a look-aside server, one for each deployment; policies in the server's process and in
// clients see the same.
//
// # Rule
//
// Keys have values with a version and a time to live. A value is replaced whole, by Set whatever was there, by
// CompareAndSet if it was not written since it was read. A store is bounded: where room is needed, the entry used
// least recently goes. What is kept here must be worth no more than a better guess: it is memory only, a restart
// empties it, and it may go at any time.
//
// # Complexity
//
// O(1) for every call, under one mutex.
//
// # Guarantees
//
// Versions are never given twice, not even by a store that was restarted (as far as clocks go forward), so
// CompareAndSet with a version of before the restart fails rather than overwrites.
//
// A policy uses it in Prepare, where it may call out; see examples/sharedstore. In the server's process the context
// has the store ([FromContext]); a client's policy has one of [NewClient].
//
// Source: "Pattern 1" of Ray Serve's custom request routers, the centralised actor.
package sharedstore

import (
	"context"
	"errors"
	"time"
)

// Bounds of one entry.
const (
	maxKey   = 256      // bytes
	maxValue = 64 << 10 // bytes
	maxTTL   = 24 * time.Hour
)

// Errors of a [Store], to be asked for with [errors.Is].
var (
	// ErrNotFound: there is no such key, or none any more.
	ErrNotFound = errors.New("sharedstore: no such key")
	// ErrConflict: the value was written since it was read: read again.
	ErrConflict = errors.New("sharedstore: the version is another one")
	// ErrInvalid: a key is empty or too long, or a value too long.
	ErrInvalid = errors.New("sharedstore: want a key of 1 to 256 bytes and a value of at most 64 KiB")
)

// check returns ErrInvalid for what no store takes.
func check(key string, value []byte) error {
	if key == "" || len(key) > maxKey || len(value) > maxValue {
		return ErrInvalid
	}
	return nil
}

// An Entry is a value as it was read. The value must not be changed.
type Entry struct {
	Value   []byte
	Version uint64
	TTL     time.Duration // that is left
}

// A Store is safe for use by many goroutines. Calls of one that is far away end with their context.
type Store interface {
	// Get returns a value, or ErrNotFound.
	Get(ctx context.Context, key string) (Entry, error)
	// Set writes a value, whatever was there, and returns its version. A ttl that is not positive, or longer than a
	// day, is a day.
	Set(ctx context.Context, key string, value []byte, ttl time.Duration) (version uint64, err error)
	// CompareAndSet writes a value if the one there has this version, 0 = there is none; else it returns ErrConflict.
	CompareAndSet(ctx context.Context, key string, version uint64, value []byte, ttl time.Duration) (uint64, error)
	// Delete takes a value out. One that is not there is no error.
	Delete(ctx context.Context, key string) error
}

type contextKey struct{}

// NewContext returns a context with a store for the policies that are called with it.
func NewContext(ctx context.Context, s Store) context.Context {
	return context.WithValue(ctx, contextKey{}, s)
}

// FromContext returns the store in a context, nil if there is none: outside a look-aside server.
func FromContext(ctx context.Context) Store {
	s, _ := ctx.Value(contextKey{}).(Store)
	return s
}
