package sharedstore

import (
	"cmp"
	"container/list"
	"context"
	"sync"
	"time"
)

// maxMemory bounds a memory in bytes: keys, values, and overhead for each entry.
const maxMemory, overhead = 16 << 20, 200

// memory is a [Store] in this process.
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
func NewMemory(now func() time.Time) Store {
	return &memory{now: now, entries: make(map[string]*list.Element), version: uint64(max(now().UnixNano(), 1))}
}

// Get implements [Store].
func (m *memory) Get(_ context.Context, key string) (Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.find(key)
}

// Set implements [Store].
func (m *memory) Set(_ context.Context, key string, value []byte, ttl time.Duration) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.write(key, value, ttl)
}

// CompareAndSet implements [Store].
func (m *memory) CompareAndSet(
	_ context.Context, key string, version uint64, value []byte, ttl time.Duration,
) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, _ := m.find(key); e.Version != version {
		return 0, ErrConflict
	}
	return m.write(key, value, ttl)
}

// Delete implements [Store].
func (m *memory) Delete(_ context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(m.entries[key])
	return nil
}

// find returns a live entry, which is now the one used last. Called with mu held.
func (m *memory) find(key string) (Entry, error) {
	at, now := m.entries[key], m.now()
	if at == nil || !now.Before(at.Value.(*entry).until) {
		m.drop(at)
		return Entry{}, ErrNotFound
	}
	m.recent.MoveToFront(at)
	e := at.Value.(*entry)
	return Entry{Value: e.value, Version: e.version, TTL: e.until.Sub(now)}, nil
}

// write enters a value and makes room for it. Called with mu held.
func (m *memory) write(key string, value []byte, ttl time.Duration) (uint64, error) {
	if err := check(key, value); err != nil {
		return 0, err
	}
	m.drop(m.entries[key])
	ttl = min(cmp.Or(max(ttl, 0), maxTTL), maxTTL)
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
