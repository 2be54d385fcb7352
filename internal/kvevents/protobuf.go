package kvevents

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// pbField is what a field of a protobuf message means.
type pbField struct {
	field   Field
	list    pbList
	message pbMessage // of its own fields
	kind    Kind      // of the event that the message makes
	does    pbAction
}

// pbList is what a length-delimited field is a list of.
type pbList uint8

const (
	pbNone    pbList = iota
	pbNumbers        // packed
	pbTexts          // a message with repeated texts under number 1
)

type pbAction uint8

const (
	pbSet   pbAction = iota // a field of the event
	pbInto                  // a message whose fields are those around it
	pbEvent                 // an event
	pbGroup                 // an event of SMG's groups, whose blocks hide other content unless it is marked
	pbBlock                 // a block of an event
	pbSeq                   // the batch's sequence number
	pbRank                  // the batch's data-parallel rank
)

// pbMessage is the fields of a message by their numbers.
type pbMessage map[protowire.Number]pbField

// pbFormat is a dialect of KV events.
type pbFormat struct {
	batch pbMessage
	media []string // by number; the last stands for all that follow
}

// smg is KvEventBatch of SMG's common.proto.
var smg = pbFormat{
	media: []string{"GPU", "CPU", "DISK", "level"},
	batch: pbMessage{
		1: {does: pbSeq},
		3: {does: pbEvent, message: pbMessage{
			2: {does: pbInto, kind: Stored, message: pbMessage{
				1: {does: pbBlock, message: pbMessage{
					1: {field: FieldHashes}, 2: {field: FieldTokens, list: pbNumbers}, 3: {field: FieldBlockSize},
					4: {field: FieldAdapterID}, 5: {field: FieldMedium},
				}},
				2: {field: FieldParent},
			}},
			3: {does: pbInto, kind: Removed, message: pbMessage{
				1: {field: FieldHashes, list: pbNumbers}, 2: {field: FieldMedium},
			}},
			4: {does: pbInto, kind: Cleared},
		}},
		4: {does: pbRank},
		6: {does: pbGroup, message: pbMessage{
			1: {field: FieldKind}, 2: {field: FieldGroup}, 3: {field: FieldHashes}, 4: {field: FieldParent},
			5: {field: FieldTokens, list: pbNumbers}, 6: {field: FieldBlockSize}, 7: {field: FieldSpec}, 9: {field: FieldMatchable},
		}},
	},
}

// openEngine is KvEventBatch of OpenEngine, without the envelope.
var openEngine = pbFormat{
	media: []string{"GPU", "GPU", "CPU", "DISK", "EXTERNAL"},
	batch: pbMessage{
		1: {does: pbSeq},
		3: {does: pbRank},
		4: {does: pbEvent, message: pbMessage{
			10: {does: pbInto, kind: Stored, message: pbMessage{
				1: {does: pbInto, message: openHash(FieldHashes)}, 2: {does: pbInto, message: openHash(FieldParent)},
				3: {field: FieldTokens, list: pbNumbers}, 4: {field: FieldBlockSize}, 5: {field: FieldAdapterID}, 6: {field: FieldAdapter},
				7: {field: FieldMedium}, 20: {field: FieldBlockKeys, list: pbTexts}, 21: {field: FieldGroup}, 22: {field: FieldSpec},
			}},
			11: {does: pbInto, kind: Removed, message: pbMessage{
				1: {does: pbInto, message: openHash(FieldHashes)}, 2: {field: FieldMedium}, 3: {field: FieldGroup},
			}},
			12: {does: pbInto, kind: Cleared},
		}},
	},
}

// openHash is a KvBlockHash.
func openHash(f Field) pbMessage { return pbMessage{1: {field: f}} }

// decode reads a batch and returns its sequence number.
func (f *pbFormat) decode(b *Batch, msg []byte) (seq uint64) {
	b.Reset()
	b.reader.media = f.media
	b.Finish(b.walk(f.batch, msg, &seq) == nil)
	return seq
}

// walk reads a message by its table.
func (b *Batch) walk(m pbMessage, msg []byte, seq *uint64) error {
	return eachField(msg, func(f field) error {
		is, known := m[f.num]
		if !known {
			return nil
		}
		switch is.does {
		case pbSeq:
			*seq = f.value
		case pbRank:
			b.SetRank(int64(f.value))
		case pbEvent, pbGroup:
			b.Begin(UnknownKind)
			b.reader.hidden = is.does == pbGroup
			b.End(b.walk(is.message, f.bytes, seq))
			return b.Step()
		case pbInto:
			if is.kind != UnknownKind {
				b.reader.event.Kind = is.kind
			}
			return b.walk(is.message, f.bytes, seq)
		case pbBlock:
			b.block(is.message, f.bytes, seq)
			return b.Step()
		default:
			return b.Set(is.field, pbValue{f, is.list})
		}
		return nil
	})
}

// block reads a block that names its own medium, size and adapter. Where they differ from those of the blocks before,
// it begins an event of its own, the child of the last one. A block that cannot be read is counted and left out.
func (b *Batch) block(m pbMessage, msg []byte, seq *uint64) {
	r := &b.reader
	before, hashes, tokens := r.event, len(b.hashes), len(b.tokens)
	r.event = Event{Kind: before.Kind, Parent: before.Parent, HasParent: before.HasParent}
	err := b.walk(m, msg, seq)
	if err == nil && len(b.hashes) == hashes {
		b.hashes = append(b.hashes, 0)
	}
	if err != nil || len(b.hashes) != hashes+1 {
		b.hashes, b.tokens, r.event = b.hashes[:hashes], b.tokens[:tokens], before
		b.Bad[BadEvent]++
		return
	}
	now := r.event
	if hashes == r.hashes ||
		now.BlockSize == before.BlockSize && now.Medium == before.Medium && now.Numbered == before.Numbered {
		return
	}
	r.event = before
	b.keep(hashes, tokens)
	now.Parent, now.HasParent = b.hashes[hashes-1], true
	r.event, r.hashes, r.tokens, r.split = now, hashes, tokens, r.split+1
}

// field is one field of an encoded message.
type field struct {
	num   protowire.Number
	bytes []byte // of a length-delimited one
	value uint64 // of another
	typ   protowire.Type
}

// eachField calls do for every field of an encoded message until it returns an error; an error if the message breaks
// off.
func eachField(b []byte, do func(f field) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		f := field{num: num, typ: typ}
		switch typ {
		case protowire.VarintType:
			f.value, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			f.value, n = protowire.ConsumeFixed64(b)
		case protowire.Fixed32Type:
			var v uint32
			v, n = protowire.ConsumeFixed32(b)
			f.value = uint64(v)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if err := do(f); err != nil {
			return err
		}
	}
	return nil
}

// pbValue is a field as a [Value].
type pbValue struct {
	field
	list pbList
}

// Null implements [Value]. Bytes of length 0 are none.
func (v pbValue) Null() bool { return v.typ == protowire.BytesType && len(v.bytes) == 0 }

// Number implements [Value].
func (v pbValue) Number() (uint64, bool) { return v.value, v.typ != protowire.BytesType }

// Text implements [Value].
func (v pbValue) Text() ([]byte, bool) { return v.bytes, v.typ == protowire.BytesType }

// Bytes implements [Value].
func (v pbValue) Bytes() ([]byte, bool) { return v.Text() }

// List implements [Value].
func (v pbValue) List(each func(Value) error) error {
	switch {
	case v.typ != protowire.BytesType || v.list == pbNone:
		return ErrType
	case v.list == pbNumbers:
		return v.numbers(func(n uint64) error { return each(pbValue{field: field{value: n}}) })
	}
	return eachField(v.bytes, func(f field) error {
		if f.num != 1 {
			return nil
		}
		return each(pbValue{field: f})
	})
}

// Tokens implements [Value].
func (v pbValue) Tokens(to []uint32) ([]uint32, error) {
	err := v.numbers(func(n uint64) error {
		to = append(to, uint32(n))
		return nil
	})
	return to, err
}

// numbers calls each for the numbers of a repeated field, packed or not.
func (v pbValue) numbers(each func(uint64) error) error {
	if v.typ != protowire.BytesType {
		return each(v.value)
	}
	for b := v.bytes; len(b) > 0; {
		n, size := protowire.ConsumeVarint(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		if err := each(n); err != nil {
			return err
		}
	}
	return nil
}
