package kvevents

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/warmpath/warmpath/internal/kvevents"
)

// eventFields are the fields of an event by their names.
var eventFields = map[string]kvevents.Field{
	"type":               kvevents.FieldKind,
	"block_hashes":       kvevents.FieldHashes,
	"parent_block_hash":  kvevents.FieldParent,
	"token_ids":          kvevents.FieldTokens,
	"block_size":         kvevents.FieldBlockSize,
	"lora_id":            kvevents.FieldAdapterID,
	"medium":             kvevents.FieldMedium,
	"lora_name":          kvevents.FieldAdapter,
	"extra_keys":         kvevents.FieldExtraKeys,
	"block_mm_infos":     kvevents.FieldImages,
	"group_idx":          kvevents.FieldGroup,
	"kv_cache_spec_kind": kvevents.FieldSpec,
	"cache_salt":         kvevents.FieldSalt,
	"locality":           kvevents.FieldLocality,
}

// decode reads a batch as vLLM and SGLang publish it: array or map, of events that are each array or map. What cannot
// be read is counted; what can be read before and behind it is kept.
func decode(b *kvevents.Batch, payload []byte) {
	b.Reset()
	b.Finish(readBatch(b, payload) == nil)
}

// readBatch reads up to where the batch breaks off.
func readBatch(b *kvevents.Batch, p []byte) error {
	named := msgp.NextType(p) == msgp.MapType
	header := msgp.ReadArrayHeaderBytes
	if named {
		header = msgp.ReadMapHeaderBytes
	}
	n, p, err := header(p)
	if err == nil && !named && n < 2 {
		return kvevents.ErrType
	}
	for i := 0; n > 0 && err == nil; i, n = i+1, n-1 {
		name := []byte("")
		if named {
			name, p, err = msgp.ReadMapKeyZC(p)
		} else if i < len(batchFields) {
			name = batchFields[i]
		}
		if err == nil {
			p, err = readBatchField(b, string(name), p)
		}
	}
	return err
}

// batchFields are the fields of a batch in their order.
var batchFields = [][]byte{[]byte("ts"), []byte("events"), []byte("data_parallel_rank")}

func readBatchField(b *kvevents.Batch, name string, p []byte) (rest []byte, err error) {
	if name == "events" && !msgp.IsNil(p) {
		return eachElement(p, func(v value) error {
			b.Begin(kvevents.UnknownKind)
			b.End(readEvent(b, v))
			return b.Step()
		})
	}
	if rest, err = msgp.Skip(p); err != nil || name != "data_parallel_rank" || msgp.IsNil(p) {
		return rest, err
	}
	rank, ok := value(p).Number()
	if !ok {
		return rest, kvevents.ErrType
	}
	b.SetRank(int64(rank))
	return rest, nil
}

func readEvent(b *kvevents.Batch, v value) error {
	if msgp.NextType(v) == msgp.MapType {
		return setNamed(b, v)
	}
	return setPositional(b, v)
}

// setNamed takes the fields of a map.
func setNamed(b *kvevents.Batch, v value) error {
	return eachField(v, func(name string, v value) error { return b.Set(eventFields[name], v) })
}

// eachField calls read for every field of a map, whose name is a string or bytes.
func eachField(p []byte, read func(name string, v value) error) error {
	n, p, err := msgp.ReadMapHeaderBytes(p)
	for ; n > 0 && err == nil; n-- {
		var name []byte
		if name, p, err = msgp.ReadMapKeyZC(p); err != nil {
			break
		}
		var rest []byte
		if rest, err = msgp.Skip(p); err == nil {
			err = read(string(name), p[:len(p)-len(rest)])
		}
		p = rest
	}
	return err
}

// value is one encoded value.
type value []byte

// Null implements [kvevents.Value].
func (v value) Null() bool { return msgp.IsNil(v) }

// Number implements [kvevents.Value].
func (v value) Number() (uint64, bool) {
	switch msgp.NextType(v) {
	case msgp.IntType:
		n, _, err := msgp.ReadInt64Bytes(v)
		return uint64(n), err == nil
	case msgp.UintType:
		n, _, err := msgp.ReadUint64Bytes(v)
		return n, err == nil
	}
	return 0, false
}

// Text implements [kvevents.Value].
func (v value) Text() ([]byte, bool) {
	b, _, err := msgp.ReadStringZC(v)
	return b, err == nil
}

// Bytes implements [kvevents.Value].
func (v value) Bytes() ([]byte, bool) {
	b, _, err := msgp.ReadBytesZC(v)
	return b, err == nil
}

// List implements [kvevents.Value].
func (v value) List(each func(kvevents.Value) error) error {
	e := new(value) // one for all: an element is not kept
	return v.each(func(v value) error {
		*e = v
		return each(e)
	})
}

func (v value) each(do func(value) error) error {
	_, err := eachElement(v, do)
	return err
}

// eachElement calls do for every element of an array, up to where it breaks off.
func eachElement(p []byte, do func(value) error) (rest []byte, err error) {
	if msgp.NextType(p) != msgp.ArrayType {
		return p, kvevents.ErrType
	}
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	for ; n > 0 && err == nil; n-- {
		if rest, err = msgp.Skip(p); err == nil {
			err = do(value(p[:len(p)-len(rest)]))
			p = rest
		}
	}
	return p, err
}

// Tokens implements [kvevents.Value]. Each token is alone or in a pair with the next one, as SGLang writes them for
// some ways of speculation.
func (v value) Tokens(to []uint32) ([]uint32, error) {
	n, p, err := msgp.ReadArrayHeaderBytes(v)
	for ; n > 0 && err == nil; n-- {
		pair := msgp.NextType(p) == msgp.ArrayType
		if pair {
			var two uint32
			if two, p, err = msgp.ReadArrayHeaderBytes(p); err == nil && two != 2 {
				err = kvevents.ErrType
			}
		}
		if err != nil {
			break
		}
		var token uint32
		token, p, err = msgp.ReadUint32Bytes(p)
		to = append(to, token)
		if pair && err == nil {
			_, p, err = msgp.ReadUint32Bytes(p)
		}
	}
	return to, err
}
