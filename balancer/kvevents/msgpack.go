package kvevents

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"strings"

	"github.com/tinylib/msgp/msgp"
)

var errType = errors.New("kvevents: unexpected type")

// decodeMsgpack reads a batch as vLLM and SGLang publish it: array or map, of events that are each array or map.
// What cannot be read is counted in b.bad; what can be read before and behind it is kept.
func decodeMsgpack(b *batch, payload []byte) {
	b.reset()
	if err := b.readBatch(payload); err != nil {
		b.bad[badBatch]++
		return
	}
	if len(b.events) == 0 && b.bad == (unreadable{}) {
		b.bad[badEmpty]++
	}
}

func (b *batch) readBatch(p []byte) error {
	switch msgp.NextType(p) {
	case msgp.ArrayType:
		return b.readBatchArray(p)
	case msgp.MapType:
		return eachField(p, func(name string, p []byte) ([]byte, error) {
			switch name {
			case "events":
				return b.readEvents(p)
			case "data_parallel_rank":
				return b.readRank(p)
			}
			return msgp.Skip(p)
		})
	}
	return errType
}

func (b *batch) readBatchArray(p []byte) error {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return err
	}
	if n < 2 {
		return errType
	}
	if p, err = msgp.Skip(p); err != nil { // when
		return err
	}
	if p, err = b.readEvents(p); err != nil || n == 2 {
		return err
	}
	_, err = b.readRank(p)
	return err
}

func (b *batch) readRank(p []byte) ([]byte, error) {
	if msgp.IsNil(p) {
		return msgp.ReadNilBytes(p)
	}
	rank, p, err := msgp.ReadIntBytes(p)
	if err == nil && rank >= 0 {
		b.rank, b.hasRank = rank, true
	}
	return p, err
}

func (b *batch) readEvents(p []byte) ([]byte, error) {
	if msgp.IsNil(p) {
		return msgp.ReadNilBytes(p)
	}
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return p, err
	}
	for range n {
		rest, err := msgp.Skip(p)
		if err == nil {
			err = b.step()
		}
		if err != nil {
			return p, err
		}
		b.readEvent(p[:len(p)-len(rest)])
		p = rest
	}
	return p, nil
}

// readEvent keeps the event if it can be read, and counts it if not.
func (b *batch) readEvent(p []byte) {
	r := eventReader{batch: b}
	var err error
	switch msgp.NextType(p) {
	case msgp.ArrayType:
		err = r.array(p)
	case msgp.MapType:
		err = eachField(p, r.field)
	default:
		err = errType
	}
	e := &r.event
	switch {
	case err != nil:
		b.bad[badEvent]++
	case e.kind == unknownKind:
		b.bad[badKind]++
	default:
		salt, opaque := extraKeys(r.extra, e)
		e.salt, e.opaque = cmp.Or(e.salt, salt), opaque
		e.opaque = min(e.opaque, firstNotNil(r.images, len(e.hashes)))
		b.events = append(b.events, *e)
	}
}

// eachField calls read for every field of a map, whose name is a string or bytes.
func eachField(p []byte, read func(name string, p []byte) ([]byte, error)) error {
	n, p, err := msgp.ReadMapHeaderBytes(p)
	if err != nil {
		return err
	}
	for range n {
		var name []byte
		if name, p, err = msgp.ReadMapKeyZC(p); err != nil {
			return err
		}
		if p, err = read(string(name), p); err != nil {
			return err
		}
	}
	return nil
}

// eventReader reads one event. Extra keys are looked at in the end: what they mean depends on other fields.
type eventReader struct {
	event
	batch         *batch
	extra, images []byte
}

func (r *eventReader) field(name string, p []byte) (rest []byte, err error) {
	switch name {
	case "type":
		return r.readKind(p)
	case "block_hashes":
		return r.readHashes(p)
	case "parent_block_hash":
		return r.readParent(p)
	case "token_ids":
		return r.readTokens(p)
	case "block_size":
		return r.readSize(p)
	case "lora_id":
		return r.readAdapterID(p)
	case "medium":
		return readOptional(p, &r.medium)
	case "lora_name":
		return readOptional(p, &r.adapter)
	case "group_idx":
		return r.readGroup(p)
	case "kv_cache_spec_kind":
		return readOptional(p, &r.spec)
	case "cache_salt":
		return readOptional(p, &r.salt)
	case "locality":
		return r.readLocality(p)
	}
	if rest, err = msgp.Skip(p); err != nil {
		return p, err
	}
	switch name {
	case "extra_keys":
		r.extra = p[:len(p)-len(rest)]
	case "block_mm_infos":
		r.images = p[:len(p)-len(rest)]
	}
	return rest, nil
}

func (r *eventReader) readKind(p []byte) ([]byte, error) {
	tag, p, err := msgp.ReadStringZC(p)
	switch string(tag) {
	case "BlockStored":
		r.kind = stored
	case "BlockRemoved":
		r.kind = removed
	case "AllBlocksCleared":
		r.kind = cleared
	}
	return p, err
}

func (r *eventReader) readHashes(p []byte) ([]byte, error) {
	from := len(r.batch.hashes)
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	for ; n > 0 && err == nil; n-- {
		var h uint64
		if h, p, err = readHash(p); err == nil {
			err = r.batch.step()
		}
		r.batch.hashes = append(r.batch.hashes, h)
	}
	r.hashes = since(r.batch.hashes, from)
	return p, err
}

func (r *eventReader) readParent(p []byte) (rest []byte, err error) {
	if msgp.IsNil(p) {
		return msgp.ReadNilBytes(p)
	}
	r.parent, rest, err = readHash(p)
	r.hasParent = r.parent != 0 // llm-d writes 0 where there is none
	return rest, err
}

func (r *eventReader) readTokens(p []byte) ([]byte, error) {
	if msgp.IsNil(p) {
		return msgp.ReadNilBytes(p)
	}
	from := len(r.batch.tokens)
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	for ; n > 0 && err == nil; n-- {
		var token uint32
		if token, p, err = readToken(p); err == nil {
			err = r.batch.step()
		}
		r.batch.tokens = append(r.batch.tokens, token)
	}
	r.tokens = since(r.batch.tokens, from)
	return p, err
}

// readToken reads a token, alone or in a pair with the next one, as SGLang writes them for some ways of speculation.
func readToken(p []byte) (token uint32, rest []byte, err error) {
	if msgp.NextType(p) != msgp.ArrayType {
		return msgp.ReadUint32Bytes(p)
	}
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil || n != 2 {
		return 0, p, errType
	}
	if token, p, err = msgp.ReadUint32Bytes(p); err == nil {
		_, p, err = msgp.ReadUint32Bytes(p)
	}
	return token, p, err
}

// readLocality reads where the medium is: what is not the replica's own counts as one that it does not have.
func (r *eventReader) readLocality(p []byte) (rest []byte, err error) {
	where := ""
	if rest, err = readOptional(p, &where); err == nil && where != "" && !strings.EqualFold(where, "LOCAL") {
		r.elsewhere = true
	}
	return rest, err
}

func (r *eventReader) readSize(p []byte) (rest []byte, err error) {
	if msgp.IsNil(p) {
		return msgp.ReadNilBytes(p)
	}
	r.blockSize, rest, err = msgp.ReadIntBytes(p)
	return rest, err
}

func (r *eventReader) readAdapterID(p []byte) (rest []byte, err error) {
	switch msgp.NextType(p) {
	case msgp.IntType, msgp.UintType:
		var id int64
		id, rest, err = msgp.ReadInt64Bytes(p)
		r.numbered = id != 0
		return rest, err
	}
	if !msgp.IsNil(p) {
		r.numbered = true
	}
	return msgp.Skip(p)
}

func (r *eventReader) readGroup(p []byte) (rest []byte, err error) {
	if msgp.IsNil(p) {
		return msgp.ReadNilBytes(p)
	}
	r.group, rest, err = msgp.ReadIntBytes(p)
	return rest, err
}

// readHash reads an engine's hash: an integer of either sign, or bytes, of which the last eight count.
func readHash(p []byte) (uint64, []byte, error) {
	switch msgp.NextType(p) {
	case msgp.IntType:
		h, p, err := msgp.ReadInt64Bytes(p)
		return uint64(h), p, err
	case msgp.UintType:
		return msgp.ReadUint64Bytes(p)
	case msgp.BinType:
		h, p, err := msgp.ReadBytesZC(p)
		return lastEight(h), p, err
	}
	return 0, p, errType
}

func lastEight(b []byte) uint64 {
	if len(b) >= 8 {
		return binary.BigEndian.Uint64(b[len(b)-8:])
	}
	var h uint64
	for _, c := range b {
		h = h<<8 | uint64(c)
	}
	return h
}

func readOptional(p []byte, s *string) ([]byte, error) {
	if msgp.IsNil(p) {
		return msgp.ReadNilBytes(p)
	}
	b, p, err := msgp.ReadStringZC(p)
	*s = string(b)
	return p, err
}

// extraKeys finds the cache salt in the extra keys of the blocks, and the first block with keys that are neither
// salt nor adapter. The first block of a prompt has the salt as its only string; what else a block has stands for
// content that is not in its tokens.
func extraKeys(p []byte, e *event) (salt string, opaque int) {
	opaque = len(e.hashes)
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return "", opaque
	}
	for i := range int(min(n, math.MaxInt32)) {
		if i >= opaque {
			break
		}
		rest, err := msgp.Skip(p)
		if err != nil {
			break
		}
		keys, p0 := blockKeys(p[:len(p)-len(rest)], e)
		switch {
		case keys == 0:
		case keys == 1 && i == 0 && !e.hasParent && msgp.NextType(p0) == msgp.StrType:
			salt, _, _ = msgp.ReadStringBytes(p0)
		default:
			opaque = i
		}
		p = rest
	}
	return salt, opaque
}

// blockKeys returns how many extra keys a block has besides its adapter and a salt that is known, and the first of them.
func blockKeys(p []byte, e *event) (n int, first []byte) {
	if msgp.NextType(p) != msgp.ArrayType {
		if msgp.IsNil(p) {
			return 0, nil
		}
		return 1, nil
	}
	count, p, err := msgp.ReadArrayHeaderBytes(p)
	for ; count > 0 && err == nil; count-- {
		key := p
		if p, err = msgp.Skip(p); err != nil {
			break
		}
		if name, _, err := msgp.ReadStringZC(key); err == nil && len(name) > 0 && (string(name) == e.adapter || string(name) == e.salt) {
			continue
		}
		if n++; n == 1 {
			first = key
		}
	}
	return n, first
}

// firstNotNil returns the place of the first element that is not nil, or most.
func firstNotNil(p []byte, most int) int {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	for i := 0; i < most && uint32(i) < n && err == nil; i++ {
		if !msgp.IsNil(p) {
			return i
		}
		p, err = msgp.Skip(p)
	}
	return most
}
