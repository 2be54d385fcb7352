package nats

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/sharedstore"
)

// store is a [policy.Store] in a JetStream key-value bucket in memory: the version of an entry is its sequence, and the
// bucket removes it after its TTL, whatever the clocks of the servers show. It needs a majority of NATS's servers; routing
// does not.
type store struct {
	js     jetstream.JetStream
	config jetstream.StreamConfig

	mu     sync.Mutex       // guards what follows; held while the bucket is made
	stream jetstream.Stream // nil = not made yet
	silent time.Time        // since when no server answers for the bucket; zero = one does
}

const (
	// storeBytes bounds a bucket; the entries written longest ago go first.
	storeBytes = 16 << 20
	// storeTime bounds a call: without a majority of NATS's servers there is no answer.
	storeTime = 2 * time.Second
	// lostTime is how long no server may answer for the bucket until a new bucket replaces it: the servers that had it
	// are gone.
	lostTime = 10 * time.Second
	// copies is how many servers of NATS hold a bucket; fewer if NATS has fewer servers.
	copies = 3
)

func newStore(js jetstream.JetStream, name string) *store {
	bucket := "warmpath_" + encode(name)
	return &store{js: js, config: jetstream.StreamConfig{
		Name: "KV_" + bucket, Subjects: []string{"$KV." + bucket + ".>"}, Storage: jetstream.MemoryStorage,
		Replicas: copies, MaxMsgsPerSubject: 1, MaxBytes: storeBytes, Discard: jetstream.DiscardOld,
		AllowMsgTTL: true, AllowRollup: true, DenyDelete: false, MaxAge: sharedstore.MaxTTL,
	}}
}

// encode makes a token of a subject of any text.
func encode(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

func (s *store) subject(key string) string {
	return s.config.Subjects[0][:len(s.config.Subjects[0])-1] + encode(key)
}

// bucket returns the bucket, and makes it if there is none.
func (s *store) bucket(ctx context.Context) (jetstream.Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream != nil {
		return s.stream, nil
	}
	stream, err := s.js.Stream(ctx, s.config.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		c := s.config
		c.FirstSeq = uint64(time.Now().UnixNano()) // a bucket that was made before gave lower versions
		stream, err = s.js.CreateStream(ctx, c)
		for err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) && c.Replicas > 1 && ctx.Err() == nil {
			c.Replicas-- // there are fewer servers
			stream, err = s.js.CreateStream(ctx, c)
		}
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another server was first
			stream, err = s.js.Stream(ctx, c.Name)
		}
	}
	if err == nil {
		s.stream = stream
	}
	return stream, err
}

// answered notes how a write ended, and removes a bucket that is lost.
func (s *store) answered(ctx context.Context, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !errors.Is(err, jetstream.ErrNoStreamResponse):
		s.silent = time.Time{}
	case s.silent.IsZero():
		s.silent = time.Now()
	case time.Since(s.silent) > lostTime:
		s.stream, s.silent = nil, time.Time{}
		_ = s.js.DeleteStream(ctx, s.config.Name) // if that fails the next write finds it silent again
	}
}

// Get implements [policy.Store].
func (s *store) Get(ctx context.Context, key string) (policy.Entry, error) {
	if sharedstore.Check(key, nil) != nil {
		return policy.Entry{}, policy.ErrNotFound
	}
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	stream, err := s.bucket(ctx)
	if err != nil {
		return policy.Entry{}, err
	}
	m, err := stream.GetLastMsgForSubject(ctx, s.subject(key))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return policy.Entry{}, policy.ErrNotFound
	}
	if err != nil {
		return policy.Entry{}, err
	}
	ttl, err := time.ParseDuration(m.Header.Get(jetstream.MsgTTLHeader))
	left := ttl - max(time.Since(m.Time), 0)
	return policy.Entry{Value: m.Data, Version: m.Sequence, TTL: max(left, 1)}, err
}

// Set implements [policy.Store].
func (s *store) Set(ctx context.Context, key string, value []byte, ttl time.Duration) (uint64, error) {
	return s.write(ctx, key, value, ttl)
}

// CompareAndSet implements [policy.Store].
func (s *store) CompareAndSet(
	ctx context.Context, key string, version uint64, value []byte, ttl time.Duration,
) (uint64, error) {
	return s.write(ctx, key, value, ttl, jetstream.WithExpectLastSequencePerSubject(version))
}

func (s *store) write(
	ctx context.Context, key string, value []byte, ttl time.Duration, o ...jetstream.PublishOpt,
) (uint64, error) {
	if err := sharedstore.Check(key, value); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	if _, err := s.bucket(ctx); err != nil {
		return 0, err
	}
	ttl = min(cmp.Or(max(ttl, 0), sharedstore.MaxTTL), sharedstore.MaxTTL)
	ttl = (ttl + time.Second - 1).Truncate(time.Second) // JetStream has whole seconds
	o = append(o, jetstream.WithMsgTTL(ttl), jetstream.WithRetryAttempts(0))
	ack, err := s.js.Publish(ctx, s.subject(key), value, o...)
	s.answered(ctx, err)
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
		return 0, policy.ErrConflict
	}
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// Delete implements [policy.Store].
func (s *store) Delete(ctx context.Context, key string) error {
	if sharedstore.Check(key, nil) != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	stream, err := s.bucket(ctx)
	if err != nil {
		return err
	}
	return stream.Purge(ctx, jetstream.WithPurgeSubject(s.subject(key)))
}
