package kvevents

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
)

type pb []byte

func (m pb) varint(num protowire.Number, v uint64) pb {
	return protowire.AppendVarint(protowire.AppendTag(m, num, protowire.VarintType), v)
}

func (m pb) bytes(num protowire.Number, b []byte) pb {
	return protowire.AppendBytes(protowire.AppendTag(m, num, protowire.BytesType), b)
}

func packed(vs ...uint64) (b []byte) {
	for _, v := range vs {
		b = protowire.AppendVarint(b, v)
	}
	return b
}

const minus1 = ^uint64(0)

func smgBatch() pb {
	block := func(hash uint64, level ...uint64) pb {
		b := pb{}.varint(1, hash).bytes(2, packed(hash&0xff, 7)).varint(3, 2)
		for _, l := range level {
			b = b.varint(5, l)
		}
		return b
	}
	storedEvent := pb{}.bytes(1, block(1)).bytes(1, block(minus1)).bytes(1, block(3, 1)).bytes(1, block(4, 1)).varint(2, 9)
	return pb{}.varint(1, 41).varint(4, 2).
		bytes(3, pb{}.varint(1, 5).bytes(2, storedEvent)).
		bytes(3, pb{}.bytes(3, pb{}.bytes(1, packed(1, minus1)).varint(1, 3).varint(2, 1))).
		bytes(3, pb{}.bytes(4, nil)).
		bytes(3, pb{}.bytes(9, nil)).
		bytes(3, pb{}.bytes(3, []byte{0xff}))
}

func TestSMG(t *testing.T) {
	b := smgFormat.decode(context.Background(), smgBatch())
	require.Equal(t, 2, b.Rank)
	require.Equal(t, []Event{
		{Kind: Stored, Hashes: []uint64{1, minus1}, Tokens: []uint32{1, 7, 255, 7}, BlockSize: 2, Parent: 9},
		{Kind: Stored, Hashes: []uint64{3, 4}, Tokens: []uint32{3, 7, 4, 7}, BlockSize: 2, Parent: minus1, Medium: "CPU"},
		{Kind: Removed, Hashes: []uint64{1, minus1, 3}, Medium: "CPU"},
		{Kind: Cleared},
	}, b.Events)
	require.Equal(t, Unreadable{BadKind: 1, BadEvent: 1}, b.Bad)

	b = smgFormat.decode(context.Background(), pb{}.varint(1, 42))
	require.Equal(t, Unreadable{BadEmpty: 1}, b.Bad)
	b = smgFormat.decode(context.Background(), []byte{0xff})
	require.Equal(t, Unreadable{BadBatch: 1}, b.Bad)
}

// The namespace, the group, the tier and the keys of blocks, as SMG's servers send them for vLLM.
func TestSMGNamespaces(t *testing.T) {
	block := func(hash uint64, keys ...pb) pb {
		b := pb{}.varint(1, hash).bytes(2, packed(hash, 7)).varint(3, 2)
		for _, k := range keys {
			b = b.bytes(6, k)
		}
		return b
	}
	text, image := pb{}.bytes(1, []byte("tenant")), pb{}.bytes(4, pb{}.bytes(1, []byte("cat.png")).varint(2, 1))
	storedEvent := pb{}.bytes(1, block(1, text)).bytes(1, block(2, image)).varint(3, 2).bytes(4, []byte("CPU")).
		varint(5, 1).bytes(6, []byte("full_attention")).varint(8, 2).bytes(11, []byte("ada")).bytes(12, []byte("tenant"))
	msg := pb{}.varint(1, 43).
		bytes(3, pb{}.bytes(2, storedEvent)).
		bytes(3, pb{}.bytes(2, pb{}.bytes(1, block(3, text)))).
		bytes(3, pb{}.bytes(3, pb{}.bytes(1, packed(1)).varint(2, 1).varint(3, 3).varint(5, 2).varint(6, 1)))
	b := smgFormat.decode(context.Background(), msg)
	require.Empty(t, b.Bad)
	require.Equal(t, []Event{
		{
			Kind: Stored, Hashes: []uint64{1, 2}, Tokens: []uint32{1, 7, 2, 7}, BlockSize: 2, Medium: "CPU", Elsewhere: true,
			Adapter: "ada", Salt: "tenant", Opaque: 1, Group: 1, Spec: "full_attention",
		},
		{Kind: Stored, Hashes: []uint64{3}, Tokens: []uint32{3, 7}, BlockSize: 2, Salt: "tenant"},
		{Kind: Removed, Hashes: []uint64{1}, Medium: "DISK", Group: 2},
	}, b.Events)
}

func TestOpenEngine(t *testing.T) {
	hash := func(b ...byte) pb { return pb{}.bytes(1, b).bytes(2, []byte("bytes")) }
	storedEvent := pb{}.bytes(1, hash(0, 0, 0, 0, 0, 0, 1, 0)).bytes(2, hash(0, 0, 0, 0, 0, 0, 0, 9)).bytes(3, packed(1, 2)).
		varint(4, 2).bytes(6, []byte("ada")).varint(7, 2).bytes(20, pb{}.bytes(1, []byte("ada"))).varint(21, 1).bytes(22, []byte("mamba"))
	msg := pb{}.bytes(1, pb{}.varint(1, 6).varint(3, 1).
		bytes(4, pb{}.bytes(10, storedEvent)).
		bytes(4, pb{}.bytes(11, pb{}.bytes(1, hash(0, 0, 0, 0, 0, 0, 1, 0)).varint(2, 3))).
		bytes(4, pb{}.bytes(12, nil)))
	payload, ended := openBatch(msg)
	require.False(t, ended)
	b := openFormat.decode(context.Background(), payload)
	require.Empty(t, b.Bad)
	require.Equal(t, []Event{
		{
			Kind: Stored, Hashes: []uint64{256}, Parent: 9, Tokens: []uint32{1, 2}, BlockSize: 2,
			Adapter: "ada", Medium: "CPU", Group: 1, Spec: "mamba",
		},
		{Kind: Removed, Hashes: []uint64{256}, Medium: "DISK"},
		{Kind: Cleared},
	}, b.Events)

	_, ended = openBatch(pb{}.bytes(2, nil))
	require.True(t, ended)
}

func FuzzDecodeSMG(f *testing.F) {
	f.Add([]byte(smgBatch()))
	f.Add([]byte(pb{}.varint(1, 9).bytes(7, pb{}.varint(2, 3).varint(4, 1)).bytes(8, pb{}.varint(9, 1))))
	f.Fuzz(func(t *testing.T, msg []byte) {
		b := smgFormat.decode(context.Background(), msg)
		checkBatch(t, &b.Batch, len(msg))
	})
}

func FuzzDecodeOpenEngine(f *testing.F) {
	f.Add([]byte(pb{}.bytes(1, pb{}.varint(1, 6).bytes(4, pb{}.bytes(12, nil)))))
	f.Fuzz(func(t *testing.T, msg []byte) {
		if payload, ended := openBatch(msg); !ended {
			b := openFormat.decode(context.Background(), payload)
			checkBatch(t, &b.Batch, len(payload))
		}
	})
}

// checkBatch checks what every decoder guarantees: nothing larger than the input, and no batch without a count.
func checkBatch(t *testing.T, b *Batch, size int) {
	n := 0
	for _, e := range b.Events {
		if e.Kind == UnknownKind || e.Opaque < 0 || e.Opaque > len(e.Hashes) {
			t.Fatalf("%+v", e)
		}
		n += len(e.Hashes) + len(e.Tokens)
	}
	if n > 2*size {
		t.Fatalf("%d hashes and tokens from %d bytes", n, size)
	}
	if len(b.Events) == 0 && len(b.Bad) == 0 {
		t.Fatal("nothing was read and nothing counted")
	}
}
