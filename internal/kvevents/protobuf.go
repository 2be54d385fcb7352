package kvevents

import (
	"context"
	"math"

	"github.com/zeebo/xxh3"
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

// The messages of SMG's common.proto.
var (
	smgMedium  = medium("GPU", "CPU", "DISK", "level")
	smgRemoved = fields{1: hashNumbers, 2: smgMedium}
	smgBlock   = fields{1: blockHash, 2: tokens, 3: blockSize, 4: adapterID, 5: smgMedium}
	smgGroup   = fields{1: kindNumber, 2: group, 3: hash, 4: parent, 5: tokens, 6: blockSize, 7: spec, 9: matchable}
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

func kindNumber(e *Event, f protofield.Field) {
	if f.Value <= uint64(Cleared) {
		e.Kind = Kind(f.Value)
	}
}

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

// matchable is whether the tokens are all there is to a group's blocks, which they are not where it is missing.
func matchable(e *Event, f protofield.Field) {
	if f.Value != 0 {
		e.Opaque = 0
	}
}

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

// format is that of one gRPC stream of events. Field 1 of a batch is its number.
type format struct {
	start  protowire.Number // field of the request: the number to begin with
	rank   protowire.Number // field of a batch
	events map[protowire.Number]func(msg []byte) []Event
	open   bool // OpenEngine's: batches are in an envelope, and a stream may begin with a snapshot
}

var (
	smgFormat  = format{start: 1, rank: 4, events: map[protowire.Number]func([]byte) []Event{3: smgEvents, 6: one(smgGroup, math.MaxInt)}}
	openFormat = format{start: 3, rank: 3, events: map[protowire.Number]func([]byte) []Event{4: one(openEvent, 0)}, open: true}
)

// decode reads a batch into a message, until the context ends. Its print is of the events: what else is in a batch
// differs each time.
func (t *format) decode(ctx context.Context, msg []byte) (m message) {
	var content xxh3.Hasher
	m.batch.Finish(protofield.Each(msg, func(f protofield.Field) {
		read := t.events[f.Number]
		switch {
		case ctx.Err() != nil:
		case f.Number == 1:
			m.seq = f.Value
		case f.Number == t.rank:
			m.batch.SetRank(int64(f.Value))
		case read != nil:
			_, _ = content.Write(f.Bytes)
			m.print = content.Sum64() | 1
			m.batch.Add(read(f.Bytes)...)
		}
	}))
	return m
}

// one reads a message that is one event.
func one(table fields, opaque int) func([]byte) []Event {
	return func(msg []byte) []Event {
		e := Event{Opaque: opaque}
		table.read(&e, msg)
		return []Event{e}
	}
}

// smgEvents reads an event of a batch. Each stored block names its own medium, size and adapter: where they differ from
// those of the block before, it begins an event of its own, the child of the last one.
func smgEvents(msg []byte) []Event {
	e := Event{}
	var stored []Event
	block := func(_ *Event, f protofield.Field) {
		x := Event{Kind: Stored, Hashes: make([]uint64, 1)}
		smgBlock.read(&x, f.Bytes)
		if len(stored) > 0 {
			last := &stored[len(stored)-1]
			if x.Medium == last.Medium && x.BlockSize == last.BlockSize && x.Numbered == last.Numbered {
				last.Hashes, last.Tokens = append(last.Hashes, x.Hashes[0]), append(last.Tokens, x.Tokens...)
				e.Broken = e.Broken || x.Broken
				return
			}
			x.Parent = last.Hashes[len(last.Hashes)-1]
		}
		stored = append(stored, x)
	}
	fields{
		2: kind(Stored, fields{1: block, 2: parentNumber}), 3: kind(Removed, smgRemoved), 4: kind(Cleared, nil),
	}.read(&e, msg)
	if len(stored) == 0 {
		return []Event{e}
	}
	stored[0].Parent, stored[0].Broken = e.Parent, e.Broken || stored[0].Broken
	return stored
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
