package sharedstore

import (
	"bytes"
	"container/list"
	"context"
	"sync"
	"time"
)

// Defaults of [Options].
const (
	DefaultMaxEntries = 10_000
	DefaultMaxBytes   = 16 << 20
)

// overhead is what an entry takes beside its key and value, about.
const overhead = 200

// Options configure a [Memory]. None is needed.
type Options struct {
	MaxEntries int              // 0 = DefaultMaxEntries
	MaxBytes   int              // keys, values and what keeps them; 0 = DefaultMaxBytes
	Now        func() time.Time // nil = time.Now
}

// Memory is a [Store] in this process.
type Memory struct {
	now func() time.Time

	// mu guards what follows. Nothing is locked or called under it but the clock.
	mu      sync.Mutex
	max     Options
	entries map[string]*list.Element
	recent  list.List // of *entry, the one used last in front
	bytes   int
	version uint64 // given last
	evicted int64
}

var _ Store = (*Memory)(nil)

type entry struct {
	key     string
	value   []byte
	version uint64
	until   time.Time
}

func (e *entry) size() int { return len(e.key) + len(e.value) + overhead }

// Stats are a store's figures at one moment.
type Stats struct {
	Entries, Bytes int
	Evictions      int64 // entries that went although their time was not over
}

// NewMemory returns an empty store.
func NewMemory(o Options) *Memory {
	if o.Now == nil {
		o.Now = time.Now
	}
	m := &Memory{now: o.Now, entries: make(map[string]*list.Element)}
	m.version = uint64(max(o.Now().UnixNano(), 1))
	m.Limit(o.MaxEntries, o.MaxBytes)
	return m
}

// Limit changes the bounds; 0 = the default.
func (m *Memory) Limit(entries, bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if entries == 0 {
		entries = DefaultMaxEntries
	}
	if bytes == 0 {
		bytes = DefaultMaxBytes
	}
	m.max.MaxEntries, m.max.MaxBytes = entries, bytes
	m.makeRoom(nil)
}

// Stats returns the figures. What has expired and was not asked for since is still counted.
func (m *Memory) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Stats{Entries: len(m.entries), Bytes: m.bytes, Evictions: m.evicted}
}

// Get implements [Store].
func (m *Memory) Get(_ context.Context, key string) (Entry, error) {
	if err := check(key, nil); err != nil {
		return Entry{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	e := m.find(key, now)
	if e == nil {
		return Entry{}, ErrNotFound
	}
	return Entry{Value: e.value, Version: e.version, TTL: e.until.Sub(now)}, nil
}

// Set implements [Store].
func (m *Memory) Set(_ context.Context, key string, value []byte, ttl time.Duration) (uint64, error) {
	if err := check(key, value); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.write(key, value, ttl, m.now()), nil
}

// CompareAndSet implements [Store].
func (m *Memory) CompareAndSet(_ context.Context, key string, version uint64, value []byte, ttl time.Duration) (uint64, error) {
	if err := check(key, value); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now, there := m.now(), uint64(0)
	if e := m.find(key, now); e != nil {
		there = e.version
	}
	if there != version {
		return 0, ErrConflict
	}
	return m.write(key, value, ttl, now), nil
}

// Delete implements [Store].
func (m *Memory) Delete(_ context.Context, key string) error {
	if err := check(key, nil); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if at := m.entries[key]; at != nil {
		m.drop(at)
	}
	return nil
}

func check(key string, value []byte) error {
	if key == "" || len(key) > MaxKey || len(value) > MaxValue {
		return ErrInvalid
	}
	return nil
}

// find returns a live entry, which is now the one used last. Called with mu held.
func (m *Memory) find(key string, now time.Time) *entry {
	at := m.entries[key]
	if at == nil {
		return nil
	}
	e := at.Value.(*entry)
	if !now.Before(e.until) {
		m.drop(at)
		return nil
	}
	m.recent.MoveToFront(at)
	return e
}

// write enters a value. Called with mu held.
func (m *Memory) write(key string, value []byte, ttl time.Duration, now time.Time) uint64 {
	if at := m.entries[key]; at != nil {
		m.drop(at)
	}
	if ttl <= 0 || ttl > MaxTTL {
		ttl = MaxTTL
	}
	m.version++
	e := &entry{key: key, value: bytes.Clone(value), version: m.version, until: now.Add(ttl)}
	at := m.recent.PushFront(e)
	m.entries[key] = at
	m.bytes += e.size()
	m.makeRoom(at)
	return e.version
}

// makeRoom drops those used least recently while there is too much; never what was just written, which fits by itself: the
// smallest bounds are larger. Called with mu held.
func (m *Memory) makeRoom(written *list.Element) {
	for len(m.entries) > m.max.MaxEntries || m.bytes > m.max.MaxBytes {
		last := m.recent.Back()
		if last == nil || last == written {
			return
		}
		if m.now().Before(last.Value.(*entry).until) {
			m.evicted++
		}
		m.drop(last)
	}
}

func (m *Memory) drop(at *list.Element) {
	e := m.recent.Remove(at).(*entry)
	delete(m.entries, e.key)
	m.bytes -= e.size()
}
