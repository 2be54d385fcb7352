package kvevents

import (
	"context"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// setter takes a field of a protobuf message into an event.
type setter func(e *Event, f field)

// fields are what the fields of a message mean, by number. Others are left out.
type fields map[protowire.Number]setter

// read reads a message into an event.
func (m fields) read(e *Event, msg []byte) {
	ok := eachField(msg, func(f field) {
		if set := m[f.num]; set != nil {
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
	return func(e *Event, f field) {
		e.Kind = k
		of.read(e, f.bytes)
	}
}

// inside is a message with the value in its field 1.
func inside(set setter) setter {
	return func(e *Event, f field) { fields{1: set}.read(e, f.bytes) }
}

// medium is a medium by its number; the last name stands for all that follow.
func medium(names ...string) setter {
	return func(e *Event, f field) { e.Medium = names[min(f.value, uint64(len(names)-1))] }
}

func kindNumber(e *Event, f field) {
	if f.value <= uint64(Cleared) {
		e.Kind = Kind(f.value)
	}
}

func hash(e *Event, f field)         { e.Hashes = append(e.Hashes, HashOf(f.bytes)) }
func blockHash(e *Event, f field)    { e.Hashes[0] = f.value }
func hashNumbers(e *Event, f field)  { e.Hashes = numbers(e, e.Hashes, f) }
func parent(e *Event, f field)       { e.Parent = HashOf(f.bytes) }
func parentNumber(e *Event, f field) { e.Parent = f.value }
func tokens(e *Event, f field)       { e.Tokens = numbers(e, e.Tokens, f) }
func blockSize(e *Event, f field)    { e.BlockSize = f.int() }
func adapter(e *Event, f field)      { e.Adapter = string(f.bytes) }
func adapterID(e *Event, f field)    { e.Numbered = f.value != 0 || len(f.bytes) > 0 }
func group(e *Event, f field)        { e.Group = f.int() }
func spec(e *Event, f field)         { e.Spec = string(f.bytes) }

// matchable is whether the tokens are all there is to a group's blocks, which they are not where it is missing.
func matchable(e *Event, f field) {
	if f.value != 0 {
		e.Opaque = 0
	}
}

// numbers appends the numbers of a repeated field, packed or not.
func numbers[T uint32 | uint64](e *Event, to []T, f field) []T {
	if f.typ != protowire.BytesType {
		return append(to, T(f.value))
	}
	for b := f.bytes; len(b) > 0; {
		n, size := protowire.ConsumeVarint(b)
		if size < 0 {
			e.Broken = true
			break
		}
		to, b = append(to, T(n)), b[size:]
	}
	return to
}

// decodeSMG reads KvEventBatch of SMG's common.proto.
func decodeSMG(ctx context.Context, msg []byte) (b Batch) {
	b.Finish(eachField(msg, func(f field) {
		switch {
		case ctx.Err() != nil:
		case f.num == 3:
			b.Add(smgEvents(f.bytes)...)
		case f.num == 4:
			b.SetRank(int64(f.value))
		case f.num == 6:
			e := Event{Opaque: math.MaxInt}
			smgGroup.read(&e, f.bytes)
			b.Add(e)
		}
	}))
	return b
}

// smgEvents reads an event of a batch. Each stored block names its own medium, size and adapter: where they differ from
// those of the block before, it begins an event of its own, the child of the last one.
func smgEvents(msg []byte) []Event {
	e := Event{}
	var stored []Event
	block := func(_ *Event, f field) {
		x := Event{Kind: Stored, Hashes: make([]uint64, 1)}
		smgBlock.read(&x, f.bytes)
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

// decodeOpen reads KvEventBatch of OpenEngine, without the envelope.
func decodeOpen(ctx context.Context, msg []byte) (b Batch) {
	b.Finish(eachField(msg, func(f field) {
		switch {
		case ctx.Err() != nil:
		case f.num == 3:
			b.SetRank(int64(f.value))
		case f.num == 4:
			var e Event
			openEvent.read(&e, f.bytes)
			b.Add(e)
		}
	}))
	return b
}

// openBlocks is a message of stored blocks, with the extra keys of each in a message of texts.
func openBlocks(e *Event, f field) {
	e.Kind = Stored
	openStored.read(e, f.bytes)
	block := 0
	_ = eachField(f.bytes, func(f field) {
		if f.num != 20 {
			return
		}
		var keys []string
		ok := eachField(f.bytes, func(f field) {
			if f.num == 1 {
				keys = append(keys, string(f.bytes))
			}
		})
		e.SetKeys(block, keys)
		e.Broken = e.Broken || !ok
		block++
	})
}

// field is one field of an encoded message.
type field struct {
	num   protowire.Number
	typ   protowire.Type
	bytes []byte // of a length-delimited one
	value uint64 // of another
}

func (f field) int() int { return int(int32(min(int64(f.value), math.MaxInt32))) }

// eachField calls do for every field of an encoded message; false if the message breaks off.
func eachField(b []byte, do func(f field)) (ok bool) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		f := field{num: num, typ: typ}
		switch typ {
		case protowire.VarintType:
			f.value, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return false
		}
		b = b[n:]
		do(f)
	}
	return true
}
