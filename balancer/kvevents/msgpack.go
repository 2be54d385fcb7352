package kvevents

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"github.com/warmpath/warmpath/internal/kvevents"
)

// decode reads a batch as vLLM and SGLang publish it: array or map, of events that are each array or map. What cannot
// be read is counted; what can be read before and behind it is kept. It stops when the context ends.
func decode(ctx context.Context, payload []byte) (b kvevents.Batch) {
	batch := scan(payload, "ts", "events", "data_parallel_rank")
	ok := batch.named || batch.left >= 2
	for batch.next() {
		switch {
		case msgp.IsNil(batch.value):
		case batch.name == "events":
			events := scan(batch.value)
			for events.next() && !events.broken && ctx.Err() == nil {
				b.Add(readEvent(events.value))
			}
			ok = ok && !events.broken
		case batch.name == "data_parallel_rank":
			rank, _, err := number(batch.value)
			b.SetRank(int64(rank))
			ok = ok && err == nil
		}
	}
	b.Finish(ok && !batch.broken)
	return b
}

var kinds = map[string]kvevents.Kind{
	"BlockStored": kvevents.Stored, "BlockRemoved": kvevents.Removed, "AllBlocksCleared": kvevents.Cleared,
}

// event is an event that is being read, and what is looked at when it is complete.
type event struct {
	kvevents.Event
	keys   []byte // by block, a list of what distinguishes it beside its tokens
	images []byte // by block, not null where it has any
}

func readEvent(v []byte) kvevents.Event {
	var e event
	if msgp.NextType(v) == msgp.MapType {
		e.setNamed(v)
	} else {
		e.setPositional(v)
	}
	images := scan(e.images)
	for block := 0; images.next(); block++ {
		if !msgp.IsNil(images.value) {
			e.SetOpaque(block)
		}
	}
	blocks := scan(e.keys)
	for block := 0; blocks.next(); block++ {
		var texts []string
		keys := scan(blocks.value)
		for keys.next() {
			text, _, _ := msgp.ReadStringBytes(keys.value)
			texts = append(texts, text)
		}
		if keys.broken && !msgp.IsNil(blocks.value) {
			texts = append(texts, "")
		}
		e.SetKeys(block, texts)
	}
	return e.Event
}

// setNamed takes the fields of a map in.
func (e *event) setNamed(v []byte) {
	s := scan(v)
	for s.next() {
		e.set(s.name, s.value)
	}
	e.Broken = e.Broken || s.broken
}

// set takes a field in. Null is none.
func (e *event) set(name string, v []byte) {
	if msgp.IsNil(v) {
		return
	}
	var err error
	var text string
	switch name {
	case "type":
		text, _, err = msgp.ReadStringBytes(v)
		e.Kind = kinds[text]
	case "block_hashes":
		e.Hashes, err = list(v, hash)
	case "parent_block_hash":
		e.Parent, _, err = hash(v)
	case "token_ids":
		e.Tokens, err = list(v, token)
	case "block_size":
		e.BlockSize, _, err = msgp.ReadIntBytes(v)
	case "lora_id":
		n, _, bad := number(v)
		e.Numbered = bad != nil || n != 0
	case "medium":
		e.Medium, _, err = msgp.ReadStringBytes(v)
	case "lora_name":
		e.Adapter, _, err = msgp.ReadStringBytes(v)
	case "group_idx":
		e.Group, _, err = msgp.ReadIntBytes(v)
	case "kv_cache_spec_kind":
		e.Spec, _, err = msgp.ReadStringBytes(v)
	case "cache_salt":
		e.Salt, _, err = msgp.ReadStringBytes(v)
	case "locality": // a medium that is not the replica's own is none of its tiers
		text, _, err = msgp.ReadStringBytes(v)
		e.Elsewhere = text != "" && !strings.EqualFold(text, "LOCAL")
	case "extra_keys":
		e.keys = v
	case "block_mm_infos":
		e.images = v
	}
	e.Broken = e.Broken || err != nil
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
func (e *event) setPositional(v []byte) {
	var fields [][]byte
	s := scan(v)
	for s.next() {
		if msgp.NextType(s.value) == msgp.MapType { // SGLang had the salt in one, behind all others
			e.setNamed(s.value)
		} else if len(fields) < maxFields {
			fields = append(fields, s.value)
		}
	}
	if e.Broken = e.Broken || s.broken || len(fields) == 0; e.Broken {
		return
	}
	e.set("type", fields[0])
	fields = fields[1:]
	for i, name := range fieldOrder(e.Kind, fields) {
		if i < len(fields) {
			e.set(name, fields[i])
		}
	}
}

// fieldOrder returns what the fields behind the kind are.
func fieldOrder(k kvevents.Kind, fields [][]byte) []string {
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
func withoutAdapterID(fields [][]byte) bool {
	if len(fields) > 4 {
		if name, _, err := msgp.ReadStringBytes(fields[4]); err == nil {
			_, known := kvevents.TierOf(name)
			return known
		}
	}
	return len(fields) > 6 && msgp.NextType(fields[6]) == msgp.ArrayType
}

// imagesFirst reports whether block_mm_infos stands before group_idx, kv_cache_spec_kind, the window and the locality.
func imagesFirst(tail [][]byte) bool {
	var types [4]msgp.Type
	for i := range min(len(tail), len(types)) {
		types[i] = msgp.NextType(tail[i])
	}
	number := func(t msgp.Type) bool { return t == msgp.IntType || t == msgp.UintType }
	return types[0] == msgp.ArrayType || number(types[1]) || types[2] == msgp.StrType || number(types[3])
}

// number reads an integer of either sign.
func number(p []byte) (n uint64, rest []byte, err error) {
	if msgp.NextType(p) == msgp.IntType {
		n, rest, err := msgp.ReadInt64Bytes(p)
		return uint64(n), rest, err
	}
	return msgp.ReadUint64Bytes(p)
}

// hash reads an engine's hash: an integer of either sign, or bytes.
func hash(p []byte) (h uint64, rest []byte, err error) {
	if msgp.NextType(p) == msgp.BinType {
		b, rest, err := msgp.ReadBytesZC(p)
		return kvevents.HashOf(b), rest, err
	}
	return number(p)
}

var errPair = errors.New("kvevents: not a pair of tokens")

// token reads a token, alone or in a pair with the next one, as SGLang writes them for some ways of speculation.
func token(p []byte) (t uint32, rest []byte, err error) {
	if msgp.NextType(p) != msgp.ArrayType {
		return msgp.ReadUint32Bytes(p)
	}
	n, rest, err := msgp.ReadArrayHeaderBytes(p)
	if err == nil && n != 2 {
		err = errPair
	}
	if err == nil {
		t, rest, err = msgp.ReadUint32Bytes(rest)
	}
	if err == nil {
		_, rest, err = msgp.ReadUint32Bytes(rest)
	}
	return t, rest, err
}

// list reads an array of numbers.
func list[T any](p []byte, read func(p []byte) (T, []byte, error)) ([]T, error) {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	to := make([]T, 0, min(int(n), len(p)))
	for ; n > 0 && err == nil; n-- {
		var x T
		x, p, err = read(p)
		to = append(to, x)
	}
	return to, err
}

// scanner goes through an array, or a map whose keys are strings or bytes.
type scanner struct {
	name   string // of a field
	value  []byte
	broken bool // it is none, or breaks off within the value

	order []string // of fields in an array
	named bool
	left  uint32
	rest  []byte
}

func scan(p []byte, order ...string) *scanner {
	s := &scanner{order: order, named: msgp.NextType(p) == msgp.MapType}
	header := msgp.ReadArrayHeaderBytes
	if s.named {
		header = msgp.ReadMapHeaderBytes
	}
	var err error
	s.left, s.rest, err = header(p)
	s.broken = err != nil
	return s
}

// next goes to the next value, false behind the last one. Of one that breaks off, what there is is the last.
func (s *scanner) next() bool {
	if s.left == 0 || s.broken {
		return false
	}
	s.left--
	var err error
	switch s.name = ""; {
	case s.named:
		var name []byte
		name, s.rest, err = msgp.ReadMapKeyZC(s.rest)
		s.name = string(name)
	case len(s.order) > 0:
		s.name, s.order = s.order[0], s.order[1:]
	}
	if s.broken = err != nil; s.broken {
		return false
	}
	rest, err := msgp.Skip(s.rest)
	s.value, s.rest, s.broken = s.rest[:len(s.rest)-len(rest)], rest, err != nil
	return true
}
