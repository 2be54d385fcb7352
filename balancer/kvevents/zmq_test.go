package kvevents

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/freeport"
	"github.com/warmpath/warmpath/internal/kvevents"
	"github.com/warmpath/warmpath/internal/kvindex"
)

const testBlock = 4

// ids returns n blocks of tokens that begin at from.
func ids(from, n int) []uint32 {
	tokens := make([]uint32, n*testBlock)
	for i := range tokens {
		tokens[i] = uint32(from*testBlock + i)
	}
	return tokens
}

// chained returns the hashes of those blocks in one prompt.
func chained(tokens []uint32) []uint64 {
	return kvindex.AppendTokens(nil, tokens, testBlock, kvindex.SeedFor("m", "", ""))
}

// followedBy subscribes to the publisher until the test ends.
type followedBy struct {
	*kvevents.Manager
	changes chan policy.CacheChange
}

func subscribe(t *testing.T, events, replay string, quiet time.Duration) *followedBy {
	f := &followedBy{changes: make(chan policy.CacheChange, 1000)}
	f.Manager = kvevents.NewManager(kvevents.Options{Quiet: quiet, Sink: func(cs []policy.CacheChange) {
		for _, c := range cs {
			c.Stored = append([]uint64(nil), c.Stored...)
			f.changes <- c
		}
	}})
	a := policy.Attributes{ID: "a", Models: []string{"m"}, KVEvents: "tcp://" + events + "?topic=kv"}
	if replay != "" {
		a.KVEventsReplay = "tcp://" + replay
	}
	f.SetFleet([]policy.Attributes{a})
	t.Cleanup(f.Close)
	return f
}

// stored waits for the chained hash of one block.
func (f *followedBy) stored(t *testing.T, n int) {
	t.Helper()
	c := <-f.changes
	require.Equal(t, chained(ids(n, 1)), c.Stored)
	require.False(t, c.Cleared)
}

func one(t testing.TB, n int) []byte {
	return pack(t, array{1.5, array{array{"BlockStored", array{n + 1}, nil, toAny(ids(n, 1)), testBlock}}})
}

func toAny(tokens []uint32) array {
	out := array{}
	for _, x := range tokens {
		out = append(out, x)
	}
	return out
}

const never = time.Hour

func TestZMQ(t *testing.T) {
	for name, reply := range map[string]func(seq, payload []byte) [][]byte{
		"two frames":   func(seq, payload []byte) [][]byte { return [][]byte{nil, seq, payload} },
		"three frames": func(seq, payload []byte) [][]byte { return [][]byte{nil, []byte("kv"), seq, payload} },
		"no delimiter": func(seq, payload []byte) [][]byte { return [][]byte{[]byte("kv"), seq, payload} },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPublisher(t)
			p.reply = reply
			p.publish(one(t, 0), false) // before there is a subscriber
			f := subscribe(t, p.address(0), p.address(1), never)
			f.stored(t, 0)
			require.Equal(t, "kv", <-p.topics)

			p.publish(one(t, 1), false)
			f.stored(t, 1)
			p.publish(one(t, 2), true)
			p.publish(one(t, 3), false) // shows the gap
			f.stored(t, 2)
			f.stored(t, 3)

			p.frames([]byte("kv"), []byte("short"), nil)
			p.frames([]byte("kv"))
			p.cut()
			p.publish(one(t, 4), false) // while there is no connection
			f.stored(t, 4)
			<-p.topics
			p.publish(one(t, 5), false)
			f.stored(t, 5)
			require.Eventually(t, func() bool { return f.Status()[0].Next == 6 }, 30*time.Second, time.Millisecond)
			st := f.Status()[0]
			require.Equal(t, kvevents.Unreadable{"frames": 2}, st.Unreadable)
			require.Equal(t, int64(2), st.Connections)
			require.Equal(t, int64(1), st.Gaps)
			require.Zero(t, st.Clears)
			require.Equal(t, 6, st.Blocks)
			require.Equal(t, uint64(6), st.Next)
		})
	}
}

// The loss of the last message shows in no gap: a quiet engine is asked for a replay.
func TestQuietEngineIsAskedForAReplay(t *testing.T) {
	p := newPublisher(t)
	f := subscribe(t, p.address(0), p.address(1), time.Millisecond)
	<-p.topics
	p.publish(one(t, 0), true)
	f.stored(t, 0)
}

// A replay socket that does not answer is a problem in the status, and loses only the missing messages.
func TestBrokenReplayIsInTheStatus(t *testing.T) {
	p := newPublisher(t)
	f := subscribe(t, p.address(0), "127.0.0.1:1", never)
	<-p.topics
	p.publish(one(t, 0), false)
	f.stored(t, 0)
	require.Eventually(t, func() bool { return strings.Contains(f.Status()[0].Problem, "replay") }, 30*time.Second, time.Millisecond)
	require.Positive(t, f.Status()[0].ReplayErrors)
}

func TestWaitsForTheEngineToConnect(t *testing.T) {
	port := fmt.Sprint(freeport.Find(1)[0])
	f := subscribe(t, "*:"+port, "", never)
	p := newPublisher(t)
	for n := range 2 { // the second connection takes the place of the first
		var c *peer
		require.Eventually(t, func() bool {
			var err error
			c, err = dialPeer(p.ctx, "127.0.0.1:"+port, "PUB")
			return err == nil
		}, 30*time.Second, time.Millisecond)
		p.mu.Lock()
		p.subs = nil
		p.mu.Unlock()
		p.ended.Go(func() { p.join(c) })
		<-p.topics
		p.publish(one(t, n), false)
		f.stored(t, n)
	}
}
