package kvevents

import (
	"context"
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// The tiers of the dialects by number; the last stands for all that follow.
var (
	smgMedia  = []string{"GPU", "CPU", "DISK", "level"}
	openMedia = []string{"GPU", "GPU", "CPU", "DISK", "EXTERNAL"}
)

// decodeSMG reads KvEventBatch of SMG's common.proto.
func decodeSMG(ctx context.Context, msg []byte) (b Batch) {
	b.Finish(eachField(msg, func(f field) error {
		switch f.num {
		case 3:
			all, err := smgEvent(f.bytes)
			for _, e := range all {
				b.Add(e, err)
			}
		case 4:
			b.SetRank(int64(f.value))
		case 6:
			b.Add(smgGroup(f.bytes))
		}
		return ctx.Err()
	}))
	return b
}

// smgEvent reads one of a batch's events, which are several where blocks on different media are stored.
func smgEvent(msg []byte) (all []Event, err error) {
	all = make([]Event, 1)
	err = eachField(msg, func(f field) (err error) {
		switch f.num {
		case 2:
			all, err = smgStored(f.bytes)
		case 3:
			all[0].Kind = Removed
			err = eachField(f.bytes, func(f field) (err error) {
				switch f.num {
				case 1:
					all[0].Hashes, err = numbers(all[0].Hashes, f)
				case 2:
					all[0].Medium = f.of(smgMedia)
				}
				return err
			})
		case 4:
			all[0].Kind = Cleared
		}
		return err
	})
	return all, err
}

// smgStored reads stored blocks. Each names its own medium, size and adapter: where they differ from those of the block
// before, it begins an event of its own, the child of the last one.
func smgStored(msg []byte) (all []Event, err error) {
	all = []Event{{Kind: Stored}}
	parent := uint64(0)
	err = eachField(msg, func(f field) error {
		switch f.num {
		case 1:
			x, err := smgBlock(f.bytes)
			last := &all[len(all)-1]
			if n := len(last.Hashes); n == 0 {
				*last = x
			} else if x.BlockSize == last.BlockSize && x.Medium == last.Medium && x.Numbered == last.Numbered {
				last.Hashes, last.Tokens = append(last.Hashes, x.Hashes...), append(last.Tokens, x.Tokens...)
			} else {
				x.Parent = last.Hashes[n-1]
				all = append(all, x)
			}
			return err
		case 2:
			parent = f.value
		}
		return nil
	})
	all[0].Parent = parent
	return all, err
}

func smgBlock(msg []byte) (e Event, err error) {
	e = Event{Kind: Stored, Hashes: make([]uint64, 1)}
	err = eachField(msg, func(f field) (err error) {
		switch f.num {
		case 1:
			e.Hashes[0] = f.value
		case 2:
			e.Tokens, err = numbers(e.Tokens, f)
		case 3:
			e.BlockSize = f.int()
		case 4:
			e.Numbered = f.value != 0
		case 5:
			e.Medium = f.of(smgMedia)
		}
		return err
	})
	return e, err
}

// smgGroup reads an event of a group, whose blocks are more than their tokens unless it is marked as matchable.
func smgGroup(msg []byte) (e Event, err error) {
	matchable := false
	err = eachField(msg, func(f field) (err error) {
		switch f.num {
		case 1:
			e.Kind = Kind(f.value)
			if f.value > uint64(Cleared) {
				e.Kind = UnknownKind
			}
		case 2:
			e.Group = f.int()
		case 3:
			e.Hashes = append(e.Hashes, HashOf(f.bytes))
		case 4:
			e.Parent = HashOf(f.bytes)
		case 5:
			e.Tokens, err = numbers(e.Tokens, f)
		case 6:
			e.BlockSize = f.int()
		case 7:
			e.Spec = string(f.bytes)
		case 9:
			matchable = f.value != 0
		}
		return err
	})
	if !matchable {
		e.SetOpaque(0)
	}
	return e, err
}

// decodeOpen reads KvEventBatch of OpenEngine, without the envelope.
func decodeOpen(ctx context.Context, msg []byte) (b Batch) {
	b.Finish(eachField(msg, func(f field) error {
		switch f.num {
		case 3:
			b.SetRank(int64(f.value))
		case 4:
			b.Add(openEvent(f.bytes))
		}
		return ctx.Err()
	}))
	return b
}

func openEvent(msg []byte) (e Event, err error) {
	err = eachField(msg, func(f field) error {
		switch f.num {
		case 10:
			e.Kind = Stored
			return e.setOpenStored(f.bytes)
		case 11:
			e.Kind = Removed
			return eachField(f.bytes, func(f field) error {
				switch f.num {
				case 1:
					e.Hashes = append(e.Hashes, f.openHash())
				case 2:
					e.Medium = f.of(openMedia)
				case 3:
					e.Group = f.int()
				}
				return nil
			})
		case 12:
			e.Kind = Cleared
		}
		return nil
	})
	return e, err
}

func (e *Event) setOpenStored(msg []byte) error {
	var keys [][]byte // by block
	err := eachField(msg, func(f field) (err error) {
		switch f.num {
		case 1:
			e.Hashes = append(e.Hashes, f.openHash())
		case 2:
			e.Parent = f.openHash()
		case 3:
			e.Tokens, err = numbers(e.Tokens, f)
		case 4:
			e.BlockSize = f.int()
		case 5:
			e.Numbered = f.value != 0 || len(f.bytes) > 0
		case 6:
			e.Adapter = string(f.bytes)
		case 7:
			e.Medium = f.of(openMedia)
		case 20:
			keys = append(keys, f.bytes)
		case 21:
			e.Group = f.int()
		case 22:
			e.Spec = string(f.bytes)
		}
		return err
	})
	for block, msg := range keys {
		var texts []string
		err = errors.Join(err, eachField(msg, func(f field) error {
			if f.num == 1 {
				texts = append(texts, string(f.bytes))
			}
			return nil
		}))
		e.SetKeys(block, texts)
	}
	return err
}

// openHash is the hash in a KvBlockHash.
func (f field) openHash() (h uint64) {
	_ = eachField(f.bytes, func(f field) error { // one that breaks off is no hash of a block that is used
		if f.num == 1 {
			h = HashOf(f.bytes)
		}
		return nil
	})
	return h
}

// field is one field of an encoded message.
type field struct {
	num   protowire.Number
	typ   protowire.Type
	bytes []byte // of a length-delimited one
	value uint64 // of another
}

func (f field) int() int { return int(int32(min(int64(f.value), 1<<31-1))) }

// of returns the name of a number.
func (f field) of(names []string) string { return names[min(f.value, uint64(len(names)-1))] }

// numbers appends the numbers of a repeated field, packed or not.
func numbers[T uint32 | uint64](to []T, f field) ([]T, error) {
	if f.typ != protowire.BytesType {
		return append(to, T(f.value)), nil
	}
	for b := f.bytes; len(b) > 0; {
		n, size := protowire.ConsumeVarint(b)
		if size < 0 {
			return to, protowire.ParseError(size)
		}
		to, b = append(to, T(n)), b[size:]
	}
	return to, nil
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
