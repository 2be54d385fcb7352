package enginesim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// audit checks everything that must hold between passes.
func audit(t testing.TB, e *Engine) {
	t.Helper()
	must := func(ok bool, what string) { // require is too slow for every block of every pass
		if !ok {
			t.Helper()
			t.Fatal(what)
		}
	}
	size, budget := e.cfg.BlockSize, 0
	refs := make([]int32, e.pool.size())
	for _, s := range slices.Concat(e.running, e.coming, e.held) {
		ended := slices.Contains(e.held, s)
		budget += s.chunk
		must(ended == (s.state == finished), "it holds and has not ended, or the reverse")
		must(ended || s.state == running, "a sequence that does not run is in the batch")
		must(s.computed+s.chunk <= s.tokens(), "more is computed than there is")
		must(len(s.blocks)*size >= s.computed+s.chunk, "tokens without blocks")
		must(s.result.CachedTokens < s.req.PromptTokens && s.result.CachedTokens%size == 0, "more than n-1 hits, or parts of blocks")
		for i, id := range s.blocks {
			refs[id]++
			b := &e.pool.blocks[id]
			must(!b.cached || b.hash == s.hash(i), "a pinned block has other contents")
		}
	}
	must(budget <= e.cfg.MaxBatchedTokens, "over budget")
	must(len(e.running) <= e.cfg.MaxSequences, "too many sequences")
	must(e.busy || len(e.running) == 0 && len(e.coming) == 0 && (len(e.queue) == 0 || len(e.held) > 0), "idle with work")
	free, cached := 0, 0
	for id := range refs {
		b := &e.pool.blocks[id]
		must(refs[id] == b.refs, "wrong number of references")
		if b.refs == 0 {
			free++
		}
		if b.cached {
			cached++
			found, ok := e.pool.cached[b.hash]
			must(ok && int(found) == id, "a cached block is not found")
		}
	}
	end, ring := int32(e.pool.size()), 0
	for id := e.pool.blocks[end].next; id != end && ring <= free; id = e.pool.blocks[id].next {
		ring++
	}
	must(free == e.pool.free && free == ring, "the LRU list is not the free blocks")
	must(cached == len(e.pool.cached), "the map holds what is not cached")
}

// mirror holds what the listener received.
type mirror struct {
	t    testing.TB
	held map[uint64]bool
	e    *Engine
}

func (m *mirror) KVEvents(at time.Duration, events []KVEvent) {
	require.Equal(m.t, m.e.Now(), at)
	for _, ev := range events {
		if len(ev.Hashes) == 0 || ev.Stored && (ev.Parent != 0) != (ev.First > 0) {
			m.t.Fatalf("%+v", ev)
		}
		for _, h := range ev.Hashes {
			if ev.Stored == m.held[h] {
				m.t.Fatal("stored twice, or removed and not there")
			}
			if ev.Stored {
				m.held[h] = true
			} else {
				delete(m.held, h)
			}
		}
	}
	for h := range m.held {
		if _, ok := m.e.pool.cached[h]; !ok {
			m.t.Fatal("event of a block that is not there")
		}
	}
	cached := 0
	for _, b := range m.e.pool.blocks {
		if b.cached {
			cached++
		}
	}
	require.Equal(m.t, cached, len(m.held))
}

// published compares what the listener received with what the engine reports as published.
func (m *mirror) published() {
	known := maps.Clone(m.held)
	for _, b := range m.e.pool.blocks {
		if b.hash != 0 {
			known[b.hash] = m.held[b.hash]
		}
	}
	for h, held := range known {
		if n := m.e.Published([]uint64{h, h}); n != 0 && n != 2 || (n == 2) != held {
			m.t.Fatalf("the listener's %v is not what the engine reports as published", held)
		}
	}
}

// randomRun submits requests with shared prefixes, aborts and a small pool to an engine; with odd seeds also the
// legs of requests.
func randomRun(t testing.TB, seed uint64, check bool) (log string) {
	rng := rand.New(rand.NewPCG(seed, 1))
	m := &mirror{t: t, held: map[uint64]bool{}}
	c := Config{KVTokens: 4 * (30 + rng.IntN(60)), MaxBatchedTokens: 8 + rng.IntN(60), MaxSequences: 1 + rng.IntN(12)}
	if check {
		c.Listener = m
	}
	e := small(t, c)
	m.e = e
	var live []*Sequence
	var all []*Sequence
	for i := range 300 {
		switch k := rng.IntN(10); {
		case k < 4:
			tokens := append(seqTokens(1000*rng.IntN(3), rng.IntN(40)), seqTokens(1e6+100*i, 1+rng.IntN(20))...)
			q := FromTokens(fmt.Sprint(i), tokens, 1+rng.IntN(30), e.Config().BlockSize, 0)
			if leg := rng.IntN(3); seed%2 == 1 && leg > 0 {
				q.Hold, q.Transfer = leg == 1 || i%2 == 0, time.Duration(rng.IntN(100))*time.Millisecond
				if leg == 2 {
					q.Received = q.PromptTokens - rng.IntN(2)*rng.IntN(q.PromptTokens)
				}
			}
			s, err := e.Submit(e.Now(), q)
			require.NoError(t, err)
			live, all = append(live, s), append(all, s)
		case k == 5 && len(e.held) > 0:
			e.Release(e.Now(), e.held[rng.IntN(len(e.held))])
		case k == 4 && len(live) > 0:
			j := rng.IntN(len(live))
			e.Abort(e.Now(), live[j])
			live = append(live[:j], live[j+1:]...)
		default:
			if at, busy := e.NextStep(); busy {
				for _, ev := range e.Step(at) {
					log += fmt.Sprintln(at, ev.Seq.req.ID, ev.Index, ev.Done)
				}
			}
		}
		if check {
			audit(t, e)
			m.published()
		}
	}
	for drain(t, e); len(e.held) > 0; drain(t, e) {
		e.Release(e.Now(), e.held[0])
	}
	for _, s := range all {
		r := s.Result()
		require.True(t, s.state == finished || s.state == aborted)
		if s.state == finished {
			require.Equal(t, s.req.OutputTokens, r.OutputTokens)
			require.LessOrEqual(t, r.Arrival, r.FirstToken)
			require.LessOrEqual(t, r.FirstToken, r.End)
			if r.Preemptions == 0 { // else another may have computed a part meanwhile
				require.GreaterOrEqual(t, r.ComputedTokens, r.PromptTokens-r.CachedTokens-r.ReceivedTokens)
			}
		}
		require.Empty(t, s.blocks)
	}
	require.Zero(t, e.used())
	st := e.Stats()
	require.Equal(t, st.Submitted, st.Finished+st.Aborted)
	return log + fmt.Sprintf("%+v", st)
}

func TestProperties(t *testing.T) {
	preempted := false
	for seed := range uint64(25) {
		log := randomRun(t, seed, true)
		require.Equal(t, log, randomRun(t, seed, false), "same seed, same run, with and without a Listener")
		preempted = preempted || !strings.Contains(log, "Preemptions:0 ")
	}
	require.True(t, preempted, "the pools are not tight enough to test anything")
}

func FuzzEngine(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { randomRun(t, seed, true) })
}
