package kvtransfer

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func listen(t *testing.T, lease, timeout time.Duration) *Source {
	s, err := Listen(t.Context(), "127.0.0.1:0", lease, timeout)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// ready announces a leg that is computed; freed counts its releases.
func ready(t *testing.T, s *Source, key, params string) (l *Leg, freed *atomic.Int32) {
	l, err := s.Announce(key)
	require.NoError(t, err)
	freed = &atomic.Int32{}
	l.Ready(KV{Params: params, Content: 7, Release: func() { freed.Add(1) }})
	return l, freed
}

func open(t *testing.T, s *Source, key, params string, wait bool) *Pull {
	p, err := Open(t.Context(), s.Addr().String(), key, params, wait)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

func over(t *testing.T, l *Leg) error {
	select {
	case <-l.Over():
		return l.Err()
	case <-time.After(time.Minute):
		t.Fatal("the leg goes on")
		return nil
	}
}

// released waits until the KV of a leg is freed, which follows its end.
func released(t *testing.T, freed *atomic.Int32) {
	require.Eventually(t, func() bool { return freed.Load() > 0 }, time.Minute, time.Millisecond)
	require.EqualValues(t, 1, freed.Load())
}

func TestPull(t *testing.T) {
	s := listen(t, time.Hour, time.Hour)
	l, freed := ready(t, s, "k", `{"a": 1}`)
	require.Equal(t, Stats{Held: 1}, s.Stats())
	p := open(t, s, "k", `{"a": 1}`, false)
	require.NoError(t, p.Ready(t.Context()))
	require.EqualValues(t, 7, p.Content)
	<-l.Joined()
	require.NoError(t, p.Done())
	require.NoError(t, over(t, l))
	released(t, freed)
	require.Equal(t, Stats{Pulled: 1}, s.Stats())
	l.Drop()
	require.Equal(t, Stats{Pulled: 1}, s.Stats())
}

func TestRefusals(t *testing.T) {
	s := listen(t, time.Hour, time.Millisecond)
	l, _ := ready(t, s, "k", `{"a": 1}`)
	_, err := s.Announce("k")
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorIs(t, open(t, s, "k", `{"a":1}`, false).Ready(t.Context()), ErrParams, "the bytes count")
	require.EqualError(t, open(t, s, "other", "", false).Ready(t.Context()), ErrUnknown.Error())
	require.EqualError(t, open(t, s, "other", "", true).Ready(t.Context()), ErrUnknown.Error(), "the timeout is over")
	l.Drop()
	require.EqualError(t, open(t, s, "k", `{"a": 1}`, false).Ready(t.Context()), ErrUnknown.Error())
}

// A decode engine that begins first waits for the leg, and then for its KV.
func TestWait(t *testing.T) {
	s := listen(t, time.Hour, time.Hour)
	p := open(t, s, "room", "", true)
	got := make(chan error)
	go func() { got <- p.Ready(t.Context()) }()
	l, err := s.Announce("room")
	require.NoError(t, err)
	<-l.Joined()
	l.Ready(KV{Release: func() {}})
	require.NoError(t, <-got)
	require.NoError(t, p.Done())
	require.NoError(t, over(t, l))
}

func TestLease(t *testing.T) {
	s := listen(t, 50*time.Millisecond, time.Hour)
	l, freed := ready(t, s, "k", "")
	p := open(t, s, "k", "", false)
	if err := p.Ready(t.Context()); err != nil {
		t.Skip("the machine is too busy: the lease was over before the pull")
	}
	// A pull stops the lease; a cancelled pull starts it again.
	select {
	case <-l.Over():
		t.Fatal("the lease ended a pull")
	case <-time.After(200 * time.Millisecond):
	}
	p.Close()
	require.ErrorIs(t, over(t, l), ErrExpired)
	released(t, freed)
	require.Equal(t, Stats{Expired: 1}, s.Stats())
}

func TestEnds(t *testing.T) {
	s := listen(t, time.Hour, time.Hour)
	l, freed := ready(t, s, "k", "")
	p := open(t, s, "k", "", false)
	require.NoError(t, p.Ready(t.Context()))
	l.Drop()
	<-p.Lost()
	p.Close()
	require.EqualValues(t, 1, freed.Load())

	// The source ends, before and after the KV is ready.
	waits, err := s.Announce("waits")
	require.NoError(t, err)
	late := open(t, s, "waits", "", true)
	<-waits.Joined()
	ready(t, s, "ready", "")
	p = open(t, s, "ready", "", true)
	require.NoError(t, p.Ready(t.Context()))
	s.Close()
	require.ErrorIs(t, late.Ready(t.Context()), ErrLost)
	<-p.Lost()
	p.Close()
	waits.Ready(KV{Release: func() { freed.Add(1) }})
	require.EqualValues(t, 2, freed.Load(), "what becomes ready after the end is freed at once")
	_, err = s.Announce("again")
	require.ErrorIs(t, err, ErrDropped)

	ctx, cancel := context.WithCancel(t.Context())
	s = listen(t, time.Hour, time.Hour)
	p = open(t, s, "waits", "", true)
	cancel()
	require.ErrorIs(t, p.Ready(ctx), context.Canceled)
}
