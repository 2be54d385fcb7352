package kvpublish

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/lab/enginesim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// removed is a batch with one removed block.
func removed(hash uint64) []enginesim.KVEvent { return []enginesim.KVEvent{{Hashes: []uint64{hash}}} }

func TestLogKeepsTheLast(t *testing.T) {
	l := NewLog(3)
	_, next, more := l.From(0)
	require.Zero(t, next)
	for i := range uint64(5) {
		l.KVEvents(time.Second, removed(i))
	}
	<-more
	for from, want := range map[uint64][]uint64{0: {2, 3, 4}, 3: {3, 4}, 4: {4}, 5: nil, 9: nil} {
		batches, next, _ := l.From(from)
		require.Equal(t, uint64(5), next)
		var seqs []uint64
		for _, b := range batches {
			seqs = append(seqs, b.Seq)
		}
		require.Equal(t, want, seqs, "from %d", from)
	}
}

// Engines report what they store: the tokens of prompt and output, block by block.
func TestLogReportsTokens(t *testing.T) {
	l := NewLog(0)
	e, err := enginesim.New(enginesim.Config{KVTokens: 400, BlockSize: 4, Listener: l})
	require.NoError(t, err)
	r := enginesim.FromTokens("a", []uint32{1, 2, 3, 4, 5, 6}, 8, 4, 0)
	hashesOnly := r
	r.Prompt, r.Adapter, r.CacheSalt = []uint32{1, 2, 3, 4, 5, 6}, "ada", "tenant"
	s, err := e.Submit(0, r)
	require.NoError(t, err)
	for at, busy := e.NextStep(); busy; at, busy = e.NextStep() {
		e.Step(at)
	}
	batches, _, _ := l.From(0)
	var tokens []uint32
	for i, b := range batches {
		require.Equal(t, i > 0, b.Events[0].HasParent)
		require.Equal(t, "ada", b.Events[0].Adapter)
		require.Equal(t, "tenant", b.Events[0].CacheSalt)
		tokens = append(tokens, b.Events[0].Tokens...)
	}
	want := []uint32{1, 2, 3, 4, 5, 6}
	for i := range 6 {
		want = append(want, s.Token(i))
	}
	require.Equal(t, want, tokens)

	hashesOnly.Hashes[0]++ // another prompt
	_, err = e.Submit(e.Now(), hashesOnly)
	require.NoError(t, err)
	at, _ := e.NextStep()
	e.Step(at)
	require.Equal(t, uint64(len(batches)), l.Next(), "a prompt given by its hashes only cannot be published")
}

func TestEncodings(t *testing.T) {
	b := &Batch{At: 1500 * time.Millisecond, Events: []Event{
		{Stored: true, Hashes: []uint64{^uint64(0)}, Tokens: []uint32{1, 2}, CacheSalt: "s"},
	}}
	for e, want := range map[Encoding]string{
		Arrays: "93" + "cb3ff8000000000000" + "91" + "99" + "ab426c6f636b53746f726564" + "91ff" + "c0" + "920102" + "02" + "c0" + "a3475055" + "c0" + "9191a173" + "00",
		Mixed:  "93" + "cb3ff8000000000000" + "91" + "89" + "a474797065ab426c6f636b53746f726564" + "ac626c6f636b5f686173686573" + "91cfffffffffffffffff",
		Maps:   "83" + "a27473cb3ff8000000000000" + "a66576656e7473" + "91" + "89" + "a474797065ab426c6f636b53746f726564" + "ac626c6f636b5f686173686573" + "91c420" + "000000000000000000000000000000000000000000000000ffffffffffffffff",
	} {
		raw, err := e.append(nil, b)
		require.NoError(t, err)
		got := hex.EncodeToString(raw)
		require.Equal(t, want, got[:min(len(want), len(got))], e)
	}
}
