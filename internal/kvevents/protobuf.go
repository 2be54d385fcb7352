package kvevents

import (
	"cmp"
	"context"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/internal/protofield"
)

// setter takes a field of a protobuf message into an event.
type setter func(e *Event, f protofield.Field)

// fields are what the fields of a message mean, by number. Others are left out.
type fields map[protowire.Number]setter

// read reads a message into an event.
func (m fields) read(e *Event, msg []byte) {
	ok := protofield.Each(msg, func(f protofield.Field) {
		if set := m[f.Number]; set != nil {
			set(e, f)
		}
	})
	e.Broken = e.Broken || !ok
}

// The messages of SMG's common.proto. A tier says more than a level, and follows it.
var (
	smgLevel   = medium("GPU", "CPU", "DISK", "level")
	smgTier    = medium("", "GPU", "CPU", "DISK", "EXTERNAL", "tier")
	smgStored  = fields{2: parentNumber, 3: smgTier, 5: group, 6: spec, 8: locality, 11: adapter, 12: salt}
	smgRemoved = fields{1: hashNumbers, 2: smgLevel, 3: smgTier, 5: group, 6: locality}
	smgBlock   = fields{1: blockHash, 2: tokens, 3: blockSize, 4: adapterID, 5: smgLevel}
)

// The messages of OpenEngine.
var (
	openMedium = medium("GPU", "GPU", "CPU", "DISK", "EXTERNAL")
	openStored = fields{
		1: inside(hash), 2: inside(parent), 3: tokens, 4: blockSize, 5: adapterID, 6: adapter, 7: openMedium,
		21: group, 22: spec,
	}
	openEvent = fields{
		10: openBlocks,
		11: kind(Removed, fields{1: inside(hash), 2: openMedium, 3: group}),
		12: kind(Cleared, nil),
	}
)

// kind is a message that makes the event one of this kind.
func kind(k Kind, of fields) setter {
	return func(e *Event, f protofield.Field) {
		e.Kind = k
		of.read(e, f.Bytes)
	}
}

// inside is a message with the value in its field 1.
func inside(set setter) setter {
	return func(e *Event, f protofield.Field) { fields{1: set}.read(e, f.Bytes) }
}

// medium is a medium by its number; the last name stands for all that follow.
func medium(names ...string) setter {
	return func(e *Event, f protofield.Field) { e.Medium = names[min(f.Value, uint64(len(names)-1))] }
}

// locality is where blocks are, seen from the engine.
func locality(e *Event, f protofield.Field) { e.Elsewhere = f.Value > 1 }

func hash(e *Event, f protofield.Field)         { e.Hashes = append(e.Hashes, HashOf(f.Bytes)) }
func blockHash(e *Event, f protofield.Field)    { e.Hashes[0] = f.Value }
func hashNumbers(e *Event, f protofield.Field)  { e.Hashes = numbers(e, e.Hashes, f) }
func parent(e *Event, f protofield.Field)       { e.Parent = HashOf(f.Bytes) }
func parentNumber(e *Event, f protofield.Field) { e.Parent = f.Value }
func tokens(e *Event, f protofield.Field)       { e.Tokens = numbers(e, e.Tokens, f) }
func blockSize(e *Event, f protofield.Field)    { e.BlockSize = small(f) }
func adapter(e *Event, f protofield.Field)      { e.Adapter = string(f.Bytes) }
func adapterID(e *Event, f protofield.Field)    { e.Numbered = f.Value != 0 || len(f.Bytes) > 0 }
func group(e *Event, f protofield.Field)        { e.Group = small(f) }
func spec(e *Event, f protofield.Field)         { e.Spec = string(f.Bytes) }
func salt(e *Event, f protofield.Field)         { e.Salt = string(f.Bytes) }

// numbers appends the numbers of a repeated field, packed or not.
func numbers[T uint32 | uint64](e *Event, to []T, f protofield.Field) []T {
	if f.Type != protowire.BytesType {
		return append(to, T(f.Value))
	}
	for b := f.Bytes; len(b) > 0; {
		n, size := protowire.ConsumeVarint(b)
		if size < 0 {
			e.Broken = true
			break
		}
		to, b = append(to, T(n)), b[size:]
	}
	return to
}

// format is that of one gRPC stream of events: fields of a batch, whose field 1 is its number.
type format struct {
	request        []byte // for all that there is
	rank, events   protowire.Number
	snapshot, load protowire.Number
	read           func(msg []byte) []Event // an event
	open           bool                     // OpenEngine's: batches are in an envelope, and a stream begins with a snapshot
}

var (
	smgFormat  = format{rank: 4, events: 3, snapshot: 7, load: 8, read: smgEvents}
	openFormat = format{request: []byte{2 << 3, 1}, rank: 3, events: 4, read: openEvents, open: true}
)

// numbered is a batch of a gRPC stream.
type numbered struct {
	Batch
	seq      uint64
	any      bool   // it has events
	loadOnly bool   // it has the engine's load alone, and the number of the batch before
	resync   bool   // it is the first chunk of a snapshot
	unseen   uint64 // of a snapshot: the engine's batches that it knows nothing of
}

// decode reads a batch, until the context ends.
func (t *format) decode(ctx context.Context, msg []byte) (b numbered) {
	b.Finish(protofield.Each(msg, func(f protofield.Field) {
		switch {
		case ctx.Err() != nil:
		case f.Number == 1:
			b.seq = f.Value
		case f.Number == t.rank:
			b.SetRank(int64(f.Value))
		case f.Number == t.events:
			b.any = true
			b.Add(t.read(f.Bytes)...)
		case f.Number == t.snapshot:
			chunk, _ := protofield.Last(f.Bytes)
			b.resync, b.unseen = chunk[1].Value == 0, chunk[4].Value
		case f.Number == t.load:
			record, _ := protofield.Last(f.Bytes)
			b.loadOnly = record[9].Value != 0
		}
	}))
	return b
}

// smgEvents reads an event of a batch. Each stored block names its own medium, size and adapter: if they differ from
// those of the block before, the block begins an event of its own, the child of the last one.
func smgEvents(msg []byte) []Event {
	var e Event
	var stored []Event
	var keys [][][]string // by event and block
	block := func(f protofield.Field) {
		x := Event{Kind: Stored, Hashes: make([]uint64, 1)}
		smgBlock.read(&x, f.Bytes)
		n := len(stored)
		if n > 0 && x.Medium == stored[n-1].Medium && x.BlockSize == stored[n-1].BlockSize && x.Numbered == stored[n-1].Numbered {
			last := &stored[n-1]
			last.Hashes, last.Tokens = append(last.Hashes, x.Hashes[0]), append(last.Tokens, x.Tokens...)
			last.Broken = last.Broken || x.Broken
			keys[n-1] = append(keys[n-1], blockKeys(f.Bytes))
			return
		}
		if n > 0 {
			x.Parent = stored[n-1].Hashes[len(stored[n-1].Hashes)-1]
		}
		stored, keys = append(stored, x), append(keys, [][]string{blockKeys(f.Bytes)})
	}
	fields{
		2: func(e *Event, f protofield.Field) {
			e.Kind = Stored
			smgStored.read(e, f.Bytes)
			_ = protofield.Each(f.Bytes, func(f protofield.Field) {
				if f.Number == 1 {
					block(f)
				}
			})
		},
		3: kind(Removed, smgRemoved), 4: kind(Cleared, nil),
	}.read(&e, msg)
	if len(stored) == 0 {
		return []Event{e}
	}
	stored[0].Parent = e.Parent
	for i := range stored {
		x := &stored[i]
		x.Medium = cmp.Or(e.Medium, x.Medium)
		x.Group, x.Spec, x.Elsewhere, x.Adapter, x.Salt = e.Group, e.Spec, e.Elsewhere, e.Adapter, e.Salt
		x.Broken = x.Broken || e.Broken
		for block, texts := range keys[i] {
			x.SetKeys(block, texts)
		}
	}
	return stored
}

// blockKeys returns the keys of a block beside its tokens, "" for a key that is no text.
func blockKeys(msg []byte) (texts []string) {
	_ = protofield.Each(msg, func(f protofield.Field) {
		if f.Number == 6 {
			key, _ := protofield.Last(f.Bytes)
			texts = append(texts, string(key[1].Bytes))
		}
	})
	return texts
}

// openEvents reads an event of OpenEngine.
func openEvents(msg []byte) []Event {
	var e Event
	openEvent.read(&e, msg)
	return []Event{e}
}

// openBlocks is a message of stored blocks, with the extra keys of each in a message of texts.
func openBlocks(e *Event, f protofield.Field) {
	e.Kind = Stored
	openStored.read(e, f.Bytes)
	block := 0
	_ = protofield.Each(f.Bytes, func(f protofield.Field) {
		if f.Number != 20 {
			return
		}
		var keys []string
		ok := protofield.Each(f.Bytes, func(f protofield.Field) {
			if f.Number == 1 {
				keys = append(keys, string(f.Bytes))
			}
		})
		e.SetKeys(block, keys)
		e.Broken = e.Broken || !ok
		block++
	})
}

// small is a field's value as an int, of at most 31 bits.
func small(f protofield.Field) int { return int(int32(min(int64(f.Value), math.MaxInt32))) }
