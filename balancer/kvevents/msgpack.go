package kvevents

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"github.com/warmpath/warmpath/internal/kvevents"
)

var errType = errors.New("kvevents: unexpected type")

// decode reads a batch as vLLM and SGLang publish it: array or map, of events that are each array or map. What cannot
// be read is counted; what can be read before and behind it is kept. It stops when the context ends.
func decode(ctx context.Context, payload []byte) (b kvevents.Batch) {
	fields := 0
	err := eachField(payload, []string{"ts", "events", "data_parallel_rank"}, func(name string, p []byte) ([]byte, error) {
		fields++
		if name == "events" && !msgp.IsNil(p) {
			return each(p, func(p []byte) ([]byte, error) {
				v, rest, err := next(p)
				if err == nil {
					b.Add(readEvent(v))
					err = ctx.Err()
				}
				return rest, err
			})
		}
		v, rest, err := next(p)
		if err == nil && name == "data_parallel_rank" && !msgp.IsNil(v) {
			var rank uint64
			rank, err = v.number()
			b.SetRank(int64(rank))
		}
		return rest, err
	})
	if err == nil && fields < 2 && msgp.NextType(payload) == msgp.ArrayType {
		err = errType
	}
	b.Finish(err)
	return b
}

var kinds = map[string]kvevents.Kind{
	"BlockStored": kvevents.Stored, "BlockRemoved": kvevents.Removed, "AllBlocksCleared": kvevents.Cleared,
}

// event is an event that is being read, and what is looked at when it is complete.
type event struct {
	kvevents.Event
	keys   value // by block, a list of what distinguishes it beside its tokens
	images value // by block, not null where it has any
}

func readEvent(v value) (kvevents.Event, error) {
	var e event
	var err error
	if msgp.NextType(v) == msgp.MapType {
		err = e.setNamed(v)
	} else {
		err = e.setPositional(v)
	}
	_ = e.images.each(func(block int, v value) error { // what is no list is none
		if !msgp.IsNil(v) {
			e.SetOpaque(block)
		}
		return nil
	})
	_ = e.keys.each(func(block int, v value) error {
		var keys []string
		if v.each(func(_ int, v value) error {
			text, _ := v.text()
			keys = append(keys, text)
			return nil
		}) != nil && !msgp.IsNil(v) {
			keys = append(keys, "")
		}
		e.SetKeys(block, keys)
		return nil
	})
	return e.Event, err
}

// setNamed takes the fields of a map in.
func (e *event) setNamed(v value) error {
	return eachField(v, nil, func(name string, p []byte) ([]byte, error) {
		v, rest, err := next(p)
		if err == nil {
			err = e.set(name, v)
		}
		return rest, err
	})
}

// set takes a field in. Null is none.
func (e *event) set(name string, v value) (err error) {
	if msgp.IsNil(v) {
		return nil
	}
	switch name {
	case "type":
		var kind string
		kind, err = v.text()
		e.Kind = kinds[kind]
	case "block_hashes":
		e.Hashes = make([]uint64, 0, v.length())
		_, err = each(v, func(p []byte) ([]byte, error) {
			h, rest, err := hash(p)
			e.Hashes = append(e.Hashes, h)
			return rest, err
		})
	case "parent_block_hash":
		e.Parent, _, err = hash(v)
	case "token_ids":
		e.Tokens, err = v.tokens()
	case "block_size":
		e.BlockSize, err = v.int()
	case "lora_id":
		n, err := v.number()
		e.Numbered = err != nil || n != 0
	case "medium":
		e.Medium, err = v.text()
	case "lora_name":
		e.Adapter, err = v.text()
	case "group_idx":
		e.Group, err = v.int()
	case "kv_cache_spec_kind":
		e.Spec, err = v.text()
	case "cache_salt":
		e.Salt, err = v.text()
	case "locality": // a medium that is not the replica's own is none of its tiers
		var at string
		at, err = v.text()
		e.Elsewhere = at != "" && !strings.EqualFold(at, "LOCAL")
	case "extra_keys":
		e.keys = v
	case "block_mm_infos":
		e.images = v
	}
	return err
}

// The orders of fields in arrays, behind the kind.
var (
	storedFields = []string{
		"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
	}
	removedFields = []string{"block_hashes", "medium"}
	imageFields   = []string{"block_mm_infos", "group_idx", "kv_cache_spec_kind"}
	groupFields   = []string{"group_idx", "kv_cache_spec_kind", "sliding_window", "locality"}
)

// maxFields is more than any event has. What follows is not looked at.
const maxFields = 16

// setPositional reads an event whose fields have no names. Which field stands where differs between versions: lora_id
// may be missing, block_mm_infos may stand before the group, and defaults at the end are left out. The types show
// which.
func (e *event) setPositional(v value) error {
	var fields []value
	err := v.each(func(_ int, v value) error {
		if msgp.NextType(v) == msgp.MapType { // SGLang had the salt in one, behind all others
			return e.setNamed(v)
		}
		if len(fields) < maxFields {
			fields = append(fields, v)
		}
		return nil
	})
	if err != nil || len(fields) == 0 {
		return errors.Join(err, errType)
	}
	if err := e.set("type", fields[0]); err != nil {
		return err
	}
	fields = fields[1:]
	for i, name := range fieldOrder(e.Kind, fields) {
		if i == len(fields) {
			break
		}
		if err := e.set(name, fields[i]); err != nil {
			return err
		}
	}
	return nil
}

// fieldOrder returns what the fields behind the kind are.
func fieldOrder(k kvevents.Kind, fields []value) []string {
	order := removedFields
	switch {
	case k == kvevents.Stored && withoutAdapterID(fields):
		order = slices.Delete(slices.Clone(storedFields), 4, 5)
	case k == kvevents.Stored:
		order = storedFields
	case k != kvevents.Removed:
		return nil
	}
	if imagesFirst(fields[min(len(order), len(fields)):]) {
		return slices.Concat(order, imageFields)
	}
	return slices.Concat(order, groupFields)
}

// withoutAdapterID reports whether the medium stands in the place of lora_id.
func withoutAdapterID(fields []value) bool {
	if len(fields) > 4 {
		if name, err := fields[4].text(); err == nil {
			_, known := kvevents.TierOf(name)
			return known
		}
	}
	return len(fields) > 6 && msgp.NextType(fields[6]) == msgp.ArrayType
}

// imagesFirst reports whether block_mm_infos stands before group_idx, kv_cache_spec_kind, the window and the locality.
func imagesFirst(tail []value) bool {
	var types [4]msgp.Type
	for i := range min(len(tail), len(types)) {
		types[i] = msgp.NextType(tail[i])
	}
	number := func(t msgp.Type) bool { return t == msgp.IntType || t == msgp.UintType }
	return types[0] == msgp.ArrayType || number(types[1]) || types[2] == msgp.StrType || number(types[3])
}

// value is one encoded value; empty where there is none.
type value []byte

func (v value) number() (n uint64, err error) {
	if msgp.NextType(v) == msgp.BinType {
		return 0, errType
	}
	n, _, err = hash(v)
	return n, err
}

func (v value) int() (int, error) {
	n, err := v.number()
	return int(int32(min(int64(n), 1<<31-1))), err
}

func (v value) text() (string, error) {
	b, _, err := msgp.ReadStringZC(v)
	return string(b), err
}

// hash reads an engine's hash: an integer of either sign, or bytes.
func hash(p []byte) (h uint64, rest []byte, err error) {
	switch msgp.NextType(p) {
	case msgp.BinType:
		var b []byte
		b, rest, err = msgp.ReadBytesZC(p)
		return kvevents.HashOf(b), rest, err
	case msgp.IntType:
		var n int64
		n, rest, err = msgp.ReadInt64Bytes(p)
		return uint64(n), rest, err
	}
	return msgp.ReadUint64Bytes(p)
}

// tokens reads a list of tokens. Each is alone or in a pair with the next one, as SGLang writes them for some ways of
// speculation.
func (v value) tokens() (to []uint32, err error) {
	to = make([]uint32, 0, v.length())
	_, err = each(v, func(p []byte) (rest []byte, err error) {
		pair := msgp.NextType(p) == msgp.ArrayType
		if pair {
			var two uint32
			if two, p, err = msgp.ReadArrayHeaderBytes(p); err != nil || two != 2 {
				return p, errType
			}
		}
		token, rest, err := msgp.ReadUint32Bytes(p)
		to = append(to, token)
		if pair && err == nil {
			_, rest, err = msgp.ReadUint32Bytes(rest)
		}
		return rest, err
	})
	return to, err
}

// length is how many elements an array has, as far as there is room for them.
func (v value) length() int {
	n, _, _ := msgp.ReadArrayHeaderBytes(v)
	return min(int(n), len(v))
}

// each calls do for every element of an array, up to where it breaks off.
func (v value) each(do func(i int, v value) error) error {
	i := -1
	_, err := each(v, func(p []byte) ([]byte, error) {
		v, rest, err := next(p)
		if i++; err == nil {
			err = do(i, v)
		}
		return rest, err
	})
	return err
}

// each calls read for every element of an array, with all that is left; it returns what follows.
func each(p []byte, read func(p []byte) (rest []byte, err error)) (rest []byte, err error) {
	n, rest, err := msgp.ReadArrayHeaderBytes(p)
	for ; n > 0 && err == nil; n-- {
		rest, err = read(rest)
	}
	return rest, err
}

// eachField calls read for the fields of a map, or of an array in which they have this order, as each does.
func eachField(p []byte, order []string, read func(name string, p []byte) (rest []byte, err error)) error {
	if msgp.NextType(p) != msgp.MapType {
		i := -1
		_, err := each(p, func(p []byte) ([]byte, error) {
			if i++; i < len(order) {
				return read(order[i], p)
			}
			return read("", p)
		})
		return err
	}
	n, p, err := msgp.ReadMapHeaderBytes(p)
	for ; n > 0 && err == nil; n-- {
		var name []byte
		if name, p, err = msgp.ReadMapKeyZC(p); err == nil {
			p, err = read(string(name), p)
		}
	}
	return err
}

// next splits the next value off.
func next(p []byte) (v value, rest []byte, err error) {
	rest, err = msgp.Skip(p)
	return value(p[:len(p)-len(rest)]), rest, err
}
