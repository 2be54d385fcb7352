// Package sharedstore keeps the [policy.Store] of a look-aside server's deployment in memory: keys with a version and a
// time to live, O(1) for every call under one mutex, bounded in bytes.
//
// Source: "Pattern 1" of Ray Serve's custom request routers, the centralised actor.
package sharedstore

import (
	"cmp"
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/state"
)

// Bounds of one entry.
const (
	maxKey   = 256      // bytes
	maxValue = 64 << 10 // bytes
	MaxTTL   = 24 * time.Hour
)

// Check refuses what is out of these bounds with [policy.ErrInvalid].
func Check(key string, value []byte) error {
	if key == "" || len(key) > maxKey || len(value) > maxValue {
		return policy.ErrInvalid
	}
	return nil
}

// NewContext returns a context with a store for the policies that are called with it.
func NewContext(ctx context.Context, s policy.Store) context.Context {
	return context.WithValue(ctx, state.StoreKey{}, s)
}

// maxMemory bounds a memory in bytes: keys, values, and overhead for each entry.
const maxMemory, overhead = 16 << 20, 200

// memory is a [policy.Store] in this process.
type memory struct {
	now func() time.Time

	mu      sync.Mutex // guards what follows
	entries map[string]*list.Element
	recent  list.List // of *entry, the one used last in front
	bytes   int
	version uint64 // given last
}

type entry struct {
	key     string
	value   []byte
	version uint64
	until   time.Time
}

// NewMemory returns an empty store in this process, with a clock, [time.Now] as a rule. It drops what was used least
// recently beyond 16 MiB.
func NewMemory(now func() time.Time) policy.Store {
	return &memory{now: now, entries: make(map[string]*list.Element), version: uint64(max(now().UnixNano(), 1))}
}

// Get implements [policy.Store].
func (m *memory) Get(_ context.Context, key string) (policy.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.find(key)
}

// Set implements [policy.Store].
func (m *memory) Set(_ context.Context, key string, value []byte, ttl time.Duration) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.write(key, value, ttl)
}

// CompareAndSet implements [policy.Store].
func (m *memory) CompareAndSet(
	_ context.Context, key string, version uint64, value []byte, ttl time.Duration,
) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, _ := m.find(key); e.Version != version {
		return 0, policy.ErrConflict
	}
	return m.write(key, value, ttl)
}

// Delete implements [policy.Store].
func (m *memory) Delete(_ context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(m.entries[key])
	return nil
}

// find returns a live entry, which is now the one used last. Called with mu held.
func (m *memory) find(key string) (policy.Entry, error) {
	at, now := m.entries[key], m.now()
	if at == nil || !now.Before(at.Value.(*entry).until) {
		m.drop(at)
		return policy.Entry{}, policy.ErrNotFound
	}
	m.recent.MoveToFront(at)
	e := at.Value.(*entry)
	return policy.Entry{Value: e.value, Version: e.version, TTL: e.until.Sub(now)}, nil
}

// write enters a value and makes room for it. Called with mu held.
func (m *memory) write(key string, value []byte, ttl time.Duration) (uint64, error) {
	if err := Check(key, value); err != nil {
		return 0, err
	}
	m.drop(m.entries[key])
	ttl = min(cmp.Or(max(ttl, 0), MaxTTL), MaxTTL)
	m.version++
	m.entries[key] = m.recent.PushFront(&entry{key, append([]byte(nil), value...), m.version, m.now().Add(ttl)})
	m.bytes += len(key) + len(value) + overhead
	for m.bytes > maxMemory {
		m.drop(m.recent.Back())
	}
	return m.version, nil
}

// drop takes an entry out, if there is one. Called with mu held.
func (m *memory) drop(at *list.Element) {
	if at != nil {
		e := m.recent.Remove(at).(*entry)
		delete(m.entries, e.key)
		m.bytes -= len(e.key) + len(e.value) + overhead
	}
}
