package kvevents

import (
	"encoding/binary"
	"math"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protowire"
)

// field is one field of an encoded message.
type field struct {
	num   protowire.Number
	bytes []byte // of a length-delimited one
	value uint64 // of another
	typ   protowire.Type
}

// eachProto calls do for every field of an encoded message; false if it breaks off.
func eachProto(b []byte, do func(f field)) bool {
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
			return false
		}
		b = b[n:]
		do(f)
	}
	return true
}

// eachVarint calls do for every number of a repeated field, packed or not; false if it breaks off.
func (f field) eachVarint(do func(v uint64)) bool {
	if f.typ != protowire.BytesType {
		do(f.value)
		return true
	}
	for b := f.bytes; len(b) > 0; {
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return false
		}
		do(v)
		b = b[n:]
	}
	return true
}

// decodeSMG reads a KvEventBatch of SMG's dialect and returns its sequence number.
func decodeSMG(b *batch, msg []byte) (seq uint64) {
	b.reset()
	ok := eachProto(msg, func(f field) {
		if b.step() != nil {
			return
		}
		switch f.num {
		case 1:
			seq = f.value
		case 3:
			b.smgEvent(f.bytes)
		case 4:
			b.setRank(f.value)
		case 6:
			b.smgGroupEvent(f.bytes)
		}
	})
	b.finish(ok)
	return seq
}

func (b *batch) setRank(v uint64) {
	if v <= math.MaxInt32 {
		b.rank, b.hasRank = int(v), true
	}
}

func (b *batch) finish(ok bool) {
	if !ok {
		b.bad[badBatch]++
	} else if len(b.events) == 0 && b.bad == (unreadable{}) {
		b.bad[badEmpty]++
	}
}

// keep keeps an event that could be read and is of a known kind.
func (b *batch) keep(e event, ok bool) {
	switch {
	case !ok:
		b.bad[badEvent]++
	case e.kind == unknownKind:
		b.bad[badKind]++
	default:
		b.events = append(b.events, e)
	}
}

func (b *batch) smgEvent(msg []byte) {
	known := false
	ok := eachProto(msg, func(f field) {
		switch f.num {
		case 2:
			known = true
			b.smgStored(f.bytes)
		case 3:
			known = true
			b.smgRemoved(f.bytes)
		case 4:
			known = true
			b.keep(event{kind: cleared}, true)
		}
	})
	if !ok || !known {
		b.keep(event{}, ok)
	}
}

// smgGroupEvent reads a KvGroupEvent, which stands in place of the others where vLLM tells of groups. They are of GPU only.
func (b *batch) smgGroupEvent(msg []byte) {
	var e event
	hashes, tokens := len(b.hashes), len(b.tokens)
	good, matchable := true, false
	ok := eachProto(msg, func(f field) {
		switch f.num {
		case 1:
			e.kind = smgOperation(f.value)
		case 2:
			e.group = int(int32(f.value))
		case 3:
			b.hashes = append(b.hashes, lastEight(f.bytes))
		case 4:
			e.parent = lastEight(f.bytes)
			e.hasParent = e.parent != 0
		case 5:
			good = good && f.eachVarint(func(v uint64) { b.tokens = append(b.tokens, uint32(v)) })
		case 6:
			e.blockSize = int(int32(f.value))
		case 7:
			e.spec = string(f.bytes)
		case 9:
			matchable = f.value != 0
		}
	})
	e.hashes, e.tokens = since(b.hashes, hashes), since(b.tokens, tokens)
	if matchable {
		e.opaque = len(e.hashes)
	}
	b.keep(e, ok && good)
}

func smgOperation(v uint64) kind {
	switch v {
	case 1:
		return stored
	case 2:
		return removed
	case 3:
		return cleared
	}
	return unknownKind
}

// smgRemoved reads a KvBlocksRemoved.
func (b *batch) smgRemoved(msg []byte) {
	e := event{kind: removed}
	from := len(b.hashes)
	ok := eachProto(msg, func(f field) {
		switch f.num {
		case 1:
			if !f.eachVarint(func(v uint64) { b.hashes = append(b.hashes, v) }) {
				e.kind = unknownKind
			}
		case 2:
			e.medium = smgLevel(f.value)
		}
	})
	e.hashes = since(b.hashes, from)
	b.keep(e, ok)
}

func smgLevel(v uint64) string {
	switch v {
	case 0:
		return "GPU"
	case 1:
		return "CPU"
	case 2:
		return "DISK"
	}
	return "level"
}

// smgStored reads a KvBlocksStored: every block says its own level, size and adapter, so blocks that differ in them
// become events of their own, each the child of the one before.
func (b *batch) smgStored(msg []byte) {
	var parent uint64
	var hasParent bool
	ok := eachProto(msg, func(f field) {
		if f.num == 2 {
			parent, hasParent = f.value, f.value != 0
		}
	})
	e := event{}
	hashes, tokens := len(b.hashes), len(b.tokens)
	flush := func() {
		if e.kind == stored {
			e.hashes, e.tokens = since(b.hashes, hashes), since(b.tokens, tokens)
			e.opaque = len(e.hashes)
			b.keep(e, true)
			hashes, tokens = len(b.hashes), len(b.tokens)
			parent, hasParent = e.hashes[len(e.hashes)-1], true
		}
	}
	ok = ok && eachProto(msg, func(f field) {
		if f.num != 1 {
			return
		}
		from := len(b.tokens)
		one, hash, good := b.smgBlock(f.bytes)
		if !good {
			b.tokens = b.tokens[:from]
			b.bad[badEvent]++
			return
		}
		if e.kind == stored && (one.blockSize != e.blockSize || one.medium != e.medium || one.numbered != e.numbered) {
			own := append([]uint32(nil), b.tokens[from:]...)
			b.tokens = b.tokens[:from]
			flush()
			b.tokens = append(b.tokens, own...)
			e = event{}
		}
		if e.kind != stored {
			e = one
			e.kind, e.parent, e.hasParent = stored, parent, hasParent
		}
		b.hashes = append(b.hashes, hash)
	})
	flush()
	if !ok {
		b.bad[badEvent]++
	}
}

func (b *batch) smgBlock(msg []byte) (e event, hash uint64, ok bool) {
	good := true
	ok = eachProto(msg, func(f field) {
		switch f.num {
		case 1:
			hash = f.value
		case 2:
			good = good && f.eachVarint(func(v uint64) { b.tokens = append(b.tokens, uint32(v)) })
		case 3:
			e.blockSize = int(int32(f.value))
		case 4:
			e.numbered = f.value != 0
		case 5:
			e.medium = smgLevel(f.value)
		}
	})
	return e, hash, ok && good
}

// decodeOpenEngine reads a SubscribeKvEventsResponse and returns its sequence number; ended is true if it is the
// error that ends the stream.
func decodeOpenEngine(b *batch, msg []byte) (seq uint64, ended bool) {
	b.reset()
	good := true
	ok := eachProto(msg, func(f field) {
		switch f.num {
		case 1:
			good = good && eachProto(f.bytes, func(f field) {
				switch f.num {
				case 1:
					seq = f.value
				case 3:
					b.setRank(f.value)
				case 4:
					b.openEvent(f.bytes)
				}
			})
		case 2:
			ended = true
		}
	})
	if !ended {
		b.finish(ok && good)
	}
	return seq, ended
}

func (b *batch) openEvent(msg []byte) {
	var e event
	good := true
	ok := eachProto(msg, func(f field) {
		switch f.num {
		case 10:
			e, good = b.openStored(f.bytes)
		case 11:
			e, good = b.openRemoved(f.bytes)
		case 12:
			e = event{kind: cleared}
		}
	})
	b.keep(e, ok && good)
}

func (b *batch) openStored(msg []byte) (event, bool) {
	e := event{kind: stored}
	var keys [][]byte
	hashes, tokens := len(b.hashes), len(b.tokens)
	good := true
	ok := eachProto(msg, func(f field) {
		switch f.num {
		case 1:
			b.hashes = append(b.hashes, openHash(f.bytes))
		case 2:
			e.parent = openHash(f.bytes)
			e.hasParent = e.parent != 0
		case 3:
			good = good && f.eachVarint(func(v uint64) { b.tokens = append(b.tokens, uint32(v)) })
		case 4:
			e.blockSize = int(int32(f.value))
		case 5:
			e.numbered = f.value != 0
		case 6:
			e.adapter = string(f.bytes)
		case 7:
			e.medium = openMedium(f.value)
		case 20:
			keys = append(keys, f.bytes)
		case 21:
			e.group = int(int32(f.value))
		case 22:
			e.spec = string(f.bytes)
		}
	})
	e.hashes, e.tokens = since(b.hashes, hashes), since(b.tokens, tokens)
	e.salt, e.opaque = openKeys(keys, &e)
	return e, ok && good
}

// openKeys is extraKeys for OpenEngine.
func openKeys(keys [][]byte, e *event) (salt string, opaque int) {
	for i, tuple := range keys {
		if i >= len(e.hashes) {
			break
		}
		var values []string
		eachProto(tuple, func(f field) {
			if f.num == 1 && (e.adapter == "" || string(f.bytes) != e.adapter) {
				values = append(values, string(f.bytes))
			}
		})
		switch {
		case len(values) == 0:
		case len(values) == 1 && i == 0 && !e.hasParent:
			salt = values[0]
		default:
			return salt, i
		}
	}
	return salt, len(e.hashes)
}

func (b *batch) openRemoved(msg []byte) (event, bool) {
	e := event{kind: removed}
	hashes := len(b.hashes)
	ok := eachProto(msg, func(f field) {
		switch f.num {
		case 1:
			b.hashes = append(b.hashes, openHash(f.bytes))
		case 2:
			e.medium = openMedium(f.value)
		case 3:
			e.group = int(int32(f.value))
		}
	})
	e.hashes = since(b.hashes, hashes)
	return e, ok
}

// openHash makes a number of a KvBlockHash. It is compared with none of another stream, so any will do that is the
// same for the same bytes.
func openHash(msg []byte) (h uint64) {
	eachProto(msg, func(f field) {
		switch {
		case f.num != 1:
		case len(f.bytes) == 8:
			h = binary.BigEndian.Uint64(f.bytes)
		default:
			h = xxh3.Hash(f.bytes)
		}
	})
	return h
}

func openMedium(v uint64) string {
	switch v {
	case 0, 1:
		return "GPU"
	case 2:
		return "CPU"
	case 3:
		return "DISK"
	}
	return "EXTERNAL"
}
