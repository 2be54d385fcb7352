package policy

import (
	"context"
	"errors"
	"time"

	"github.com/warmpath/warmpath/internal/router/state"
)

// Errors of a [Store], to be asked for with [errors.Is].
var (
	// ErrNotFound: there is no such key, or none any more.
	ErrNotFound = errors.New("store: no such key")
	// ErrConflict: the value was written since it was read: read again.
	ErrConflict = errors.New("store: the version is another one")
	// ErrInvalid: a key is empty or too long, or a value too long.
	ErrInvalid = errors.New("store: want a key of 1 to 256 bytes and a value of at most 64 KiB")
)

// An Entry is a value as it was read. The value must not be changed.
type Entry struct {
	Value   []byte
	Version uint64
	TTL     time.Duration // that is left
}

// A Store is what custom policies share: which replica a session has, say, or a counter for all clients. It lives in a
// look-aside server, one for each deployment; policies in the server's process and in clients see the same. Policies
// use it in Prepare, where they may call out. It is safe for use by many goroutines.
//
// A store is bounded: where room is needed, the entry used least recently goes. What is kept here must be worth no more
// than a better guess: it is memory only, a restart empties it, and it may go at any time. Versions are never given
// twice, not even by a store that was restarted (as far as clocks go forward), so CompareAndSet with a version of
// before the restart fails rather than overwrites.
type Store interface {
	// Get returns a value, or ErrNotFound.
	Get(ctx context.Context, key string) (Entry, error)
	// Set writes a value, whatever was there, and returns its version. A ttl that is not positive, or longer than a
	// day, is a day. Where several servers share a store, it is rounded up to whole seconds.
	Set(ctx context.Context, key string, value []byte, ttl time.Duration) (version uint64, err error)
	// CompareAndSet writes a value if the one there has this version, 0 = there is none; else it returns ErrConflict.
	CompareAndSet(ctx context.Context, key string, version uint64, value []byte, ttl time.Duration) (uint64, error)
	// Delete takes a value out. One that is not there is no error.
	Delete(ctx context.Context, key string) error
}

// StoreFrom returns the store in the context of a Prepare, nil if there is none: outside a look-aside server. A
// client's policy has one of client.NewStore.
func StoreFrom(ctx context.Context) Store {
	s, _ := ctx.Value(state.StoreKey{}).(Store)
	return s
}
