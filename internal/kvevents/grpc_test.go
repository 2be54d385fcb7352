package kvevents

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// SMG's relay puts the engine's load on every batch, and sends the load alone while there are no events.
func TestLoadIsNoEvent(t *testing.T) {
	withLoad := func(m pb, running uint64) []byte { return m.bytes(8, pb{}.varint(1, running)) }
	batch := func(seq uint64) pb { return pb{}.varint(1, seq).bytes(3, pb{}.bytes(3, pb{}.bytes(1, packed(seq)))) }

	r, held, st := sequenceTo()
	w := newWatcher(t.Context(), &Replica{}, "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents")
	w.seq = r
	take := func(m []byte) {
		t.Helper()
		require.NoError(t, w.take(t.Context(), m))
	}
	r.open()
	take(withLoad(batch(1), 3))
	take(withLoad(batch(2), 2))
	take(withLoad(pb{}.varint(1, 2), 1))
	r.open()
	take(withLoad(batch(1), 7)) // the same again, at another time
	take(withLoad(pb{}.varint(1, 2), 7))
	take(withLoad(batch(2), 8))
	take(withLoad(batch(3), 8))
	require.Len(t, *held, 3)
	require.Zero(t, *st)
}
