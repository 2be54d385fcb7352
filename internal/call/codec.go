package call

import (
	"context"
	"reflect"
	"slices"
	"strconv"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A requestCodec encodes the request message of a call for each attempt. It appends the patch of the attempt, such as
// its data-parallel rank. A message that can be encoded only once is kept encoded until no attempt follows: gRPC frees
// what a codec returns once that is sent, and a codec may return memory of the message itself.
type requestCodec struct {
	encoding.CodecV2
	scope  *Scope  // of the call; gRPC may keep the codec for longer
	resume *Resume // of the call; nil = it has none
	msg    any     // the request message
	once   bool    // it can be encoded only once

	mu      sync.Mutex // guards the fields below
	encoded bool
	freed   bool
	size    int // of what was encoded last, in bytes
	data    mem.BufferSlice
}

// Marshal implements [encoding.CodecV2].
func (r *requestCodec) Marshal(m any) (mem.BufferSlice, error) {
	out, err := r.encode(m)
	c := r.scope.Enter()
	if c == nil { // the call has ended
		return out, err
	}
	defer r.scope.Leave()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		return out, err
	}
	if r.Name() == encodingproto.Name { // of another encoding the end is not known
		if patch := c.patch(m); len(patch) > 0 {
			out = append(slices.Clip(out), mem.SliceBuffer(patch))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.size = out.Len()
	return out, nil
}

// sized returns the size of the message as it was sent last.
func (r *requestCodec) sized() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.size
}

// encode encodes the request message, or the message that an inner interceptor sends in its place.
func (r *requestCodec) encode(m any) (mem.BufferSlice, error) {
	if r.once && sameMessage(m, r.msg) {
		return r.kept()
	}
	return r.CodecV2.Marshal(m)
}

// patch is what the attempt at gRPC appends to the encoded request message. Called with mu held.
func (c *Call) patch(m any) (patch []byte) {
	if c.rank != 0 {
		if d := c.reserved.binding.dialect(&c.key.request); d.TakesRank() && !d.HasRank(m) {
			patch = d.PatchRank(patch, int(c.rank)-1)
		}
	}
	if level := c.key.request.Priority; level != 0 && c.reserved.binding != nil {
		patch = c.reserved.binding.dialect(&c.key.request).PatchPriority(patch, level, m)
	}
	if c.legs != nil {
		patch = c.legs.patch(patch, c.leg)
	}
	return patch
}

// keep encodes the message, which is then encoded only once.
func (r *requestCodec) keep() error {
	r.once = true
	data, err := r.kept()
	data.Free()
	return err
}

// kept returns the message that is encoded only once.
func (r *requestCodec) kept() (mem.BufferSlice, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.freed:
		return nil, status.Error(codes.Canceled, "warmpath: the call has ended")
	case !r.encoded:
		data, err := r.CodecV2.Marshal(r.msg)
		if err != nil {
			return nil, err
		}
		r.data, r.encoded = data, true
	}
	r.data.Ref()
	return slices.Clone(r.data), nil
}

// free gives the encoded message back: no attempt follows. Called with Call.mu held.
func (a *Attempts) free() {
	if r := a.codec; r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.data.Free()
		r.freed, r.data, a.codec = true, nil, nil
	}
}

// sameMessage reports whether two messages are one: slices that share their memory, else values that are equal.
func sameMessage(a, b any) bool {
	v, w := reflect.ValueOf(a), reflect.ValueOf(b)
	switch {
	case !v.IsValid() || !w.IsValid() || v.Type() != w.Type():
		return v.IsValid() == w.IsValid() && !v.IsValid()
	case v.Kind() == reflect.Slice:
		return v.Pointer() == w.Pointer() && v.Len() == w.Len()
	}
	return v.Comparable() && v.Equal(w)
}

// RankMetadata returns the metadata with the data-parallel rank that was chosen for an attempt that is about to be
// sent to a replica with several. They are nil where the replica is to choose, and where the application chose, in
// the metadata or the message. The rank is written into the message, too, where its dialect has a field for it.
func (c *Call) RankMetadata(ctx context.Context) metadata.MD {
	c.mu.Lock()
	defer c.mu.Unlock()
	rank, m := c.Decision().Rank(), c.reserved.binding.dialect(&c.key.request)
	if rank < 0 || m.HasRank(c.key.msg) ||
		len(metadata.ValueFromOutgoingContext(ctx, warmpathv1.MetadataDataParallelRank)) > 0 {
		return nil
	}
	if m.TakesRank() {
		c.rank = int16(rank) + 1
	}
	return metadata.MD{warmpathv1.MetadataDataParallelRank: {strconv.Itoa(rank)}}
}
