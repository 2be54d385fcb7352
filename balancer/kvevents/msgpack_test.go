package kvevents

import (
	"context"
	"encoding/hex"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tinylib/msgp/msgp"

	"github.com/warmpath/warmpath/internal/kvevents"
)

type (
	array = []any
	dict  = map[string]any
)

func pack(t testing.TB, v any) []byte {
	t.Helper()
	b, err := msgp.AppendIntf(nil, v)
	require.NoError(t, err)
	return b
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	var clean strings.Builder
	for line := range strings.Lines(s) {
		code, _, _ := strings.Cut(line, "#")
		clean.WriteString(strings.Join(strings.Fields(code), ""))
	}
	b, err := hex.DecodeString(clean.String())
	require.NoError(t, err)
	return b
}

// Bytes written by hand from the reference: what vLLM publishes, old and new.
const (
	oldBatch = `
		93                      # batch of three
		cb 3ff8000000000000     # ts 1.5
		93                      # three events
		 98 ab 426c6f636b53746f726564        # BlockStored, eight fields
		  92 01 cf ffffffffffffffff          # hashes 1 and 2^64-1
		  c0                                 # no parent
		  94 01 02 03 04                     # tokens
		  02                                 # block_size
		  c0                                 # lora_id
		  a3 475055                          # medium GPU
		  c0                                 # lora_name
		 93 ac 426c6f636b52656d6f766564      # BlockRemoved
		  91 d3 ffffffffffffffff             # hash -1
		  a3 435055                          # medium CPU
		 91 b0 416c6c426c6f636b73436c6561726564 # AllBlocksCleared
		02                      # data_parallel_rank`
	newBatch = `
		82                                     # map of two
		a6 6576656e7473                        # events
		 91 86                                 # one, a map of six
		  ac 626c6f636b5f686173686573 91 c4 20 0000000000000000 1111111111111111 2222222222222222 0102030405060708
		  b1 706172656e745f626c6f636b5f68617368 c4 08 00000000000000ff
		  a9 746f6b656e5f696473 92 cd 0100 ce 00010000
		  aa 626c6f636b5f73697a65 02
		  a9 6c6f72615f6e616d65 a3 616461      # lora_name ada
		  a4 74797065 ab 426c6f636b53746f726564 # type BlockStored, last
		a2 7473 cb 3ff8000000000000`
)

func TestBytesByHand(t *testing.T) {
	b := decode(context.Background(), unhex(t, oldBatch))
	require.Empty(t, b.Bad)
	require.True(t, b.HasRank)
	require.Equal(t, 2, b.Rank)
	require.Equal(t, []kvevents.Event{
		{Kind: kvevents.Stored, Hashes: []uint64{1, math.MaxUint64}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2, Medium: "GPU"},
		{Kind: kvevents.Removed, Hashes: []uint64{math.MaxUint64}, Medium: "CPU"},
		{Kind: kvevents.Cleared},
	}, b.Events)

	b = decode(context.Background(), unhex(t, newBatch))
	require.Empty(t, b.Bad)
	require.False(t, b.HasRank)
	require.Equal(t, []kvevents.Event{{
		Kind: kvevents.Stored, Hashes: []uint64{0x0102030405060708}, Parent: 255,
		Tokens: []uint32{256, 65536}, BlockSize: 2, Adapter: "ada",
	}}, b.Events)
}

// Every order of fields in the reference, in arrays and in maps.
func TestFieldOrders(t *testing.T) {
	hashes, tokens := array{1, 2}, array{1, 2, 3, 4}
	base := kvevents.Event{Kind: kvevents.Stored, Hashes: []uint64{1, 2}, Parent: 9, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2}
	with := func(change func(*kvevents.Event)) kvevents.Event { e := base; change(&e); return e }
	for name, c := range map[string]struct {
		fields array
		want   kvevents.Event
	}{
		"short":         {array{}, base},
		"lora_id":       {array{7}, with(func(e *kvevents.Event) { e.Numbered = true })},
		"no adapter":    {array{nil}, base},
		"text lora_id":  {array{"uuid"}, with(func(e *kvevents.Event) { e.Numbered = true })},
		"sglang":        {array{nil, "CPU_PINNED"}, with(func(e *kvevents.Event) { e.Medium = "CPU_PINNED" })},
		"named":         {array{3, "GPU", "ada"}, with(func(e *kvevents.Event) { e.Numbered, e.Medium, e.Adapter = true, "GPU", "ada" })},
		"no lora_id":    {array{"GPU", "ada"}, with(func(e *kvevents.Event) { e.Medium, e.Adapter = "GPU", "ada" })},
		"no id, keys":   {array{nil, "ada", array{array{"ada"}, nil}}, with(func(e *kvevents.Event) { e.Adapter = "ada" })},
		"keys":          {array{nil, "GPU", "ada", array{array{"ada"}, array{"ada"}}}, with(func(e *kvevents.Event) { e.Medium, e.Adapter = "GPU", "ada" })},
		"image":         {array{nil, "GPU", nil, array{nil, array{"img"}}}, with(func(e *kvevents.Event) { e.Medium, e.Opaque = "GPU", 1 })},
		"group":         {array{nil, "GPU", nil, nil, 1, "sliding_window", 128}, with(func(e *kvevents.Event) { e.Medium, e.Group, e.Spec = "GPU", 1, "sliding_window" })},
		"group alone":   {array{nil, "GPU", nil, nil, 1}, with(func(e *kvevents.Event) { e.Medium, e.Group = "GPU", 1 })},
		"images, group": {array{nil, "GPU", nil, nil, array{nil, array{1}}, 0, "full_attention", nil}, with(func(e *kvevents.Event) { e.Medium, e.Opaque, e.Spec = "GPU", 1, "full_attention" })},
		"nil images":    {array{nil, "GPU", nil, nil, nil, 1}, with(func(e *kvevents.Event) { e.Medium, e.Group = "GPU", 1 })},
		"nil, kind":     {array{nil, "GPU", nil, nil, nil, nil, "mamba"}, with(func(e *kvevents.Event) { e.Medium, e.Spec = "GPU", "mamba" })},
		"window":        {array{nil, "GPU", nil, nil, nil, nil, 128}, with(func(e *kvevents.Event) { e.Medium = "GPU" })},
		"all of vLLM's": {array{nil, "GPU", nil, nil, 1, "full_attention", 128, "LOCAL", "owner", "session"}, with(func(e *kvevents.Event) { e.Medium, e.Group, e.Spec = "GPU", 1, "full_attention" })},
		"not its own":   {array{nil, "CPU", nil, nil, nil, nil, nil, "REMOTE"}, with(func(e *kvevents.Event) { e.Medium, e.Elsewhere = "CPU", true })},
		"sglang's salt": {array{nil, "GPU", dict{"cache_salt": "tenant"}}, with(func(e *kvevents.Event) { e.Medium, e.Salt = "GPU", "tenant" })},
		"salt twice":    {array{nil, "GPU", nil, array{array{"tenant"}}, dict{"cache_salt": "tenant"}}, with(func(e *kvevents.Event) { e.Medium, e.Salt = "GPU", "tenant" })},
		"future fields": {array{nil, "GPU", nil, nil, nil, 0, "full_attention", nil, "x", "y", 1, 2, 3}, with(func(e *kvevents.Event) { e.Medium, e.Spec = "GPU", "full_attention" })},
	} {
		t.Run(name, func(t *testing.T) {
			ev := append(array{"BlockStored", hashes, 9, tokens, 2}, c.fields...)
			b := decode(context.Background(), pack(t, array{1.5, array{ev}}))
			require.Empty(t, b.Bad)
			require.Equal(t, []kvevents.Event{c.want}, b.Events)
		})
	}
	for name, c := range map[string]struct {
		fields array
		want   kvevents.Event
	}{
		"short":         {array{}, kvevents.Event{}},
		"medium":        {array{"DISK"}, kvevents.Event{Medium: "DISK"}},
		"group":         {array{"GPU", 2}, kvevents.Event{Medium: "GPU", Group: 2}},
		"images, group": {array{"GPU", nil, 2, "mamba"}, kvevents.Event{Medium: "GPU", Group: 2, Spec: "mamba"}},
	} {
		t.Run("removed/"+name, func(t *testing.T) {
			b := decode(context.Background(), pack(t, dict{"ts": 1, "events": array{append(array{"BlockRemoved", hashes}, c.fields...)}, "x": 1}))
			require.Empty(t, b.Bad)
			c.want.Kind, c.want.Hashes = kvevents.Removed, []uint64{1, 2}
			require.Equal(t, []kvevents.Event{c.want}, b.Events)
		})
	}
}

// What SGLang publishes: the salt by name, and with speculation each token next to the following one.
func TestSGLangsFields(t *testing.T) {
	b := decode(context.Background(), pack(t, array{1.5, array{dict{
		"type": "BlockStored", "block_hashes": array{1, 2}, "parent_block_hash": 9, "token_ids": array{array{5, 6}, array{6, 7}}, "block_size": 1,
		"lora_id": nil, "medium": "GPU", "cache_salt": "tenant", "session_id": "s", "lora_name": "ada",
	}}, 0}))
	require.Empty(t, b.Bad)
	require.Equal(t, []kvevents.Event{{
		Kind: kvevents.Stored, Hashes: []uint64{1, 2}, Parent: 9, Tokens: []uint32{5, 6}, BlockSize: 1,
		Medium: "GPU", Salt: "tenant", Adapter: "ada",
	}}, b.Events)
}

func TestSaltIsTheFirstBlocksOnlyKey(t *testing.T) {
	for name, c := range map[string]struct {
		parent any
		keys   array
		salt   string
		opaque int
	}{
		"salt":             {nil, array{array{"tenant"}, nil}, "tenant", 0},
		"adapter and salt": {nil, array{array{"ada", "tenant"}, array{"ada"}}, "tenant", 0},
		"image first":      {nil, array{array{"img", "tenant"}, nil}, "", 2},
		"image second":     {nil, array{array{"tenant"}, array{"img"}}, "tenant", 1},
		"has a parent":     {9, array{array{"img"}, nil}, "", 2},
		"pair":             {nil, array{array{array{"img", 3}}, nil}, "", 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := decode(context.Background(), pack(t, array{1.5, array{dict{
				"type": "BlockStored", "block_hashes": array{1, 2}, "parent_block_hash": c.parent, "token_ids": array{1, 2},
				"block_size": 1, "extra_keys": c.keys, "lora_name": "ada",
			}}}))
			require.Len(t, b.Events, 1)
			require.Equal(t, c.salt, b.Events[0].Salt)
			require.Equal(t, c.opaque, b.Events[0].Opaque)
		})
	}
}

// Unreadable events are counted, and the others of their batch are kept.
func TestUnreadableIsCounted(t *testing.T) {
	good := array{"AllBlocksCleared"}
	for name, c := range map[string]struct {
		payload []byte
		bad     string
		events  int
	}{
		"nothing":         {nil, kvevents.BadBatch, 0},
		"a number":        {pack(t, 3), kvevents.BadBatch, 0},
		"empty array":     {pack(t, array{}), kvevents.BadBatch, 0},
		"no events":       {pack(t, array{1.5, array{}}), kvevents.BadEmpty, 0},
		"map, no events":  {pack(t, dict{"ts": 1}), kvevents.BadEmpty, 0},
		"nil events":      {pack(t, array{1.5, nil}), kvevents.BadEmpty, 0},
		"other kind":      {pack(t, array{1.5, array{array{"BlockMoved", 1}, good}}), kvevents.BadKind, 1},
		"map, no type":    {pack(t, array{1.5, array{dict{"x": 1}, good}}), kvevents.BadKind, 1},
		"empty event":     {pack(t, array{1.5, array{array{}, good}}), kvevents.BadEvent, 1},
		"event no object": {pack(t, array{1.5, array{"x", good}}), kvevents.BadEvent, 1},
		"text hash":       {pack(t, array{1.5, array{array{"BlockRemoved", array{"x"}}, good}}), kvevents.BadEvent, 1},
		"negative token":  {pack(t, array{1.5, array{array{"BlockStored", array{1}, nil, array{-1}, 1}, good}}), kvevents.BadEvent, 1},
		"three tokens":    {pack(t, array{1.5, array{array{"BlockStored", array{1}, nil, array{array{1, 2, 3}}, 1}, good}}), kvevents.BadEvent, 1},
		"half a pair":     {pack(t, array{1.5, array{array{"BlockStored", array{1}, nil, array{array{1, "x"}}, 1}, good}}), kvevents.BadEvent, 1},
		"breaks off":      {pack(t, array{1.5, array{good, good}})[:30], kvevents.BadBatch, 1},
		"long header":     {[]byte{0xdd, 0xff, 0xff, 0xff, 0xff}, kvevents.BadBatch, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := decode(context.Background(), c.payload)
			require.Equal(t, kvevents.Unreadable{c.bad: 1}, b.Bad)
			require.Len(t, b.Events, c.events)
		})
	}
}

func FuzzDecodeMsgpack(f *testing.F) {
	f.Add(unhex(f, oldBatch))
	f.Add(unhex(f, newBatch))
	f.Add(pack(f, array{1.5, array{array{"BlockStored", array{1}, nil, array{1}, 1, nil, "GPU", "a", array{array{"x"}}, array{nil}, 1, "x", 2}}}))
	f.Fuzz(func(t *testing.T, payload []byte) {
		b := decode(context.Background(), payload)
		checkBatch(t, &b, len(payload))
	})
}

// checkBatch checks what every decoder guarantees: nothing larger than the input, and no batch without a count.
func checkBatch(t *testing.T, b *kvevents.Batch, size int) {
	n := 0
	for _, e := range b.Events {
		if e.Kind == kvevents.UnknownKind || e.Opaque < 0 || e.Opaque > len(e.Hashes) {
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
