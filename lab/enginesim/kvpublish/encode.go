package kvpublish

import (
	"encoding/binary"

	"github.com/tinylib/msgp/msgp"
)

// Encoding is how batches are written on the wire.
type Encoding string

// The encodings that engines have used.
const (
	Arrays  Encoding = "array" // batch and events are arrays
	Mixed   Encoding = "mixed" // a batch is an array of events that are maps
	Maps    Encoding = "map"   // both are maps
	hashLen          = 32
)

// record is a batch or an event: a map of its fields, or an array of their values.
type record struct {
	asMap  bool
	fields []field
}

type field struct {
	name  string
	value any
}

// MarshalMsg implements [msgp.Marshaler].
func (r record) MarshalMsg(b []byte) (_ []byte, err error) {
	if r.asMap {
		b = msgp.AppendMapHeader(b, uint32(len(r.fields)))
	} else {
		b = msgp.AppendArrayHeader(b, uint32(len(r.fields)))
	}
	for _, f := range r.fields {
		if r.asMap {
			b = msgp.AppendString(b, f.name)
		}
		if b, err = msgp.AppendIntf(b, f.value); err != nil {
			return b, err
		}
	}
	return b, nil
}

// append appends a batch.
func (e Encoding) append(b []byte, x *Batch) ([]byte, error) {
	events := make([]any, len(x.Events))
	for i := range x.Events {
		events[i] = record{e != Arrays, e.event(&x.Events[i])}
	}
	batch := record{e == Maps, []field{{"ts", x.At.Seconds()}, {"events", events}, {"data_parallel_rank", 0}}}
	return batch.MarshalMsg(b)
}

// event are the fields of an event; the first is its type.
func (e Encoding) event(x *Event) []field {
	hashes := make([]any, len(x.Hashes))
	for i, h := range x.Hashes {
		hashes[i] = e.hash(h)
	}
	if !x.Stored {
		return []field{{"type", "BlockRemoved"}, {"block_hashes", hashes}, {"medium", "GPU"}}
	}
	var parent, adapter any
	if x.HasParent {
		parent = e.hash(x.Parent)
	}
	if x.Adapter != "" {
		adapter = x.Adapter
	}
	return []field{
		{"type", "BlockStored"}, {"block_hashes", hashes}, {"parent_block_hash", parent}, {"token_ids", x.Tokens},
		{"block_size", x.BlockSize()}, {"lora_id", nil}, {"medium", "GPU"}, {"lora_name", adapter},
		{"extra_keys", x.extraKeys()},
	}
}

// extraKeys are each block's: the adapter, and with the first of a prompt the salt.
func (x *Event) extraKeys() []any {
	all := make([]any, len(x.Hashes))
	for i := range all {
		var keys []any
		if x.Adapter != "" {
			keys = append(keys, x.Adapter)
		}
		if x.CacheSalt != "" && i == 0 && !x.HasParent {
			keys = append(keys, x.CacheSalt)
		}
		if keys != nil {
			all[i] = keys
		}
	}
	return all
}

// hash is a hash as vLLM has written it: a number of either sign in arrays, an unsigned one in maps inside an array,
// and 32 bytes where all are maps.
func (e Encoding) hash(h uint64) any {
	switch e {
	case Arrays:
		return int64(h)
	case Mixed:
		return h
	}
	return binary.BigEndian.AppendUint64(make([]byte, hashLen-8), h)
}
