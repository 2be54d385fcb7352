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

// Encodings are all of them.
var Encodings = []Encoding{Arrays, Mixed, Maps}

// append appends a batch.
func (e Encoding) append(b []byte, x *Batch) []byte {
	if e == Maps {
		b = msgp.AppendMapHeader(b, 3)
		b = msgp.AppendString(b, "ts")
	} else {
		b = msgp.AppendArrayHeader(b, 3)
	}
	b = msgp.AppendFloat64(b, x.At.Seconds())
	if e == Maps {
		b = msgp.AppendString(b, "events")
	}
	b = msgp.AppendArrayHeader(b, uint32(len(x.Events)))
	for i := range x.Events {
		b = e.event(b, &x.Events[i], x.BlockSize)
	}
	if e == Maps {
		b = msgp.AppendString(b, "data_parallel_rank")
	}
	return msgp.AppendInt(b, 0)
}

// field is one of an event's fields.
type field struct {
	name  string
	write func(b []byte) []byte
}

func (e Encoding) event(b []byte, x *Event, size int) []byte {
	tag, fields := "BlockRemoved", []field{
		{"block_hashes", func(b []byte) []byte { return e.hashes(b, x.Hashes) }},
		{"medium", func(b []byte) []byte { return msgp.AppendString(b, "GPU") }},
	}
	if x.Stored {
		tag, fields = "BlockStored", e.stored(x, size)
	}
	if e == Arrays {
		b = msgp.AppendArrayHeader(b, uint32(len(fields)+1))
		b = msgp.AppendString(b, tag)
	} else {
		b = msgp.AppendMapHeader(b, uint32(len(fields)+1))
		b = msgp.AppendString(msgp.AppendString(b, "type"), tag)
	}
	for _, f := range fields {
		if e != Arrays {
			b = msgp.AppendString(b, f.name)
		}
		b = f.write(b)
	}
	return b
}

func (e Encoding) stored(x *Event, size int) []field {
	return []field{
		{"block_hashes", func(b []byte) []byte { return e.hashes(b, x.Hashes) }},
		{"parent_block_hash", func(b []byte) []byte {
			if !x.HasParent {
				return msgp.AppendNil(b)
			}
			return e.hash(b, x.Parent)
		}},
		{"token_ids", func(b []byte) []byte {
			b = msgp.AppendArrayHeader(b, uint32(len(x.Tokens)))
			for _, t := range x.Tokens {
				b = msgp.AppendUint32(b, t)
			}
			return b
		}},
		{"block_size", func(b []byte) []byte { return msgp.AppendInt(b, size) }},
		{"lora_id", msgp.AppendNil},
		{"medium", func(b []byte) []byte { return msgp.AppendString(b, "GPU") }},
		{"lora_name", func(b []byte) []byte { return textOrNil(b, x.Adapter) }},
		{"extra_keys", x.extraKeys},
	}
}

// extraKeys writes each block's: the adapter, and with the first of a prompt the salt.
func (x *Event) extraKeys(b []byte) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(x.Hashes)))
	for i := range x.Hashes {
		var keys []string
		if x.Adapter != "" {
			keys = append(keys, x.Adapter)
		}
		if x.CacheSalt != "" && i == 0 && !x.HasParent {
			keys = append(keys, x.CacheSalt)
		}
		if keys == nil {
			b = msgp.AppendNil(b)
			continue
		}
		b = msgp.AppendArrayHeader(b, uint32(len(keys)))
		for _, k := range keys {
			b = msgp.AppendString(b, k)
		}
	}
	return b
}

func textOrNil(b []byte, s string) []byte {
	if s == "" {
		return msgp.AppendNil(b)
	}
	return msgp.AppendString(b, s)
}

func (e Encoding) hashes(b []byte, hashes []uint64) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(hashes)))
	for _, h := range hashes {
		b = e.hash(b, h)
	}
	return b
}

// hash writes a hash as vLLM has done: a number of either sign in arrays, an unsigned one in maps inside an array, and
// 32 bytes where all are maps.
func (e Encoding) hash(b []byte, h uint64) []byte {
	switch e {
	case Arrays:
		return msgp.AppendInt64(b, int64(h))
	case Mixed:
		return msgp.AppendUint64(b, h)
	}
	var sha [hashLen]byte
	binary.BigEndian.PutUint64(sha[hashLen-8:], h)
	return msgp.AppendBytes(b, sha[:])
}
