package kvevents

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"
)

// engine numbers its messages and keeps the last of them.
type engine struct {
	life   int // incarnation: 0 at first, one more after each restart
	seq    uint64
	buffer []uint64
	keep   int
}

func (e *engine) payload(seq uint64) []byte { return fmt.Appendf(nil, "%d/%d", e.life, seq) }

func (e *engine) publish() {
	e.buffer = append(e.buffer, e.seq)
	e.seq++
	if len(e.buffer) > e.keep {
		e.buffer = e.buffer[1:]
	}
}

func (e *engine) restart() { e.life, e.seq, e.buffer = e.life+1, 0, nil }

// published is everything of this incarnation.
func (e *engine) published() (all []string) {
	for seq := range e.seq {
		all = append(all, string(e.payload(seq)))
	}
	return all
}

// sequenceTo returns a Sequence, what it applied since the last clear, and its counts.
func sequenceTo() (*Sequence, *[]string, *Status) {
	held, st := new([]string), new(Status)
	return &Sequence{
		apply: func(m message) { *held = append(*held, string(m.payload)) },
		clear: func() { *held = nil },
		note:  func(do func(*Status)) { do(st) },
	}, held, st
}

// accept passes a message to the sequence.
func accept(r *Sequence, seq uint64, payload []byte) (again bool) {
	return r.accept(message{seq: seq, print: xxh3.Hash(payload), payload: payload})
}

func TestLastingGapClears(t *testing.T) {
	e := &engine{keep: 100}
	r, held, _ := sequenceTo()
	r.open()
	require.False(t, accept(r, 0, e.payload(0)))
	for range gapTries {
		require.True(t, accept(r, 2, e.payload(2)))
		r.open()
		require.False(t, accept(r, 0, e.payload(0)))
	}
	require.False(t, accept(r, 2, e.payload(2)))
	require.Equal(t, []string{"0/2"}, *held)
}
