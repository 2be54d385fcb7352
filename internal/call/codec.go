package call

import (
	"context"
	"reflect"
	"slices"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A requestCodec encodes the request message of a call for each attempt. It appends the data-parallel rank of the
// attempt: of a repeated scalar the last one counts. A message that can be encoded only once it keeps until no
// attempt follows: gRPC frees what a codec returns when it has sent it, and a codec may return memory of the message
// itself.
type requestCodec struct {
	encoding.CodecV2
	call *Call
	msg  any  // the request message
	once bool // it can be encoded only once

	mu      sync.Mutex // guards the fields below
	encoded bool
	freed   bool
	data    mem.BufferSlice
}

// Marshal implements [encoding.CodecV2].
func (r *requestCodec) Marshal(m any) (out mem.BufferSlice, err error) {
	if r.once && sameMessage(m, r.msg) {
		out, err = r.kept()
	} else {
		out, err = r.CodecV2.Marshal(m)
	}
	c := r.call
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || c.rank == 0 || r.Name() != encodingproto.Name { // of another encoding the end is not known
		return out, err
	}
	if d := c.reserved.binding.dialect(&c.key.request); d.TakesRank() && !d.HasRank(m) {
		out = append(slices.Clip(out), mem.SliceBuffer(d.EncodedRank(c.rank-1)))
	}
	return out, nil
}

// kept returns the message that can be encoded only once.
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

// Sends gives the request message, which is sent once for each attempt. It returns the options of the attempts.
func (a *Attempts) Sends(msg any, opts []grpc.CallOption) []grpc.CallOption {
	c := a.call
	c.mu.Lock()
	defer c.mu.Unlock()
	c.key.msg = msg
	codec, chosen := codecOf(opts)
	if _, a.single = msg.(*grpc.PreparedMsg); a.single || codec == nil {
		return opts
	}
	once := chosen || codec.Name() != encodingproto.Name
	switch msg.(type) {
	case nil, proto.Message, protoadapt.MessageV1: // gRPC may encode it as often as it likes
	default:
		once = true
	}
	// The rank is written when gRPC encodes the message, since only then the replica is certain.
	b := c.handle.bound.Load()
	if !once && b != noBinding && !(b.Ranks && b.dialect(&c.key.request).TakesRank()) {
		return opts
	}
	a.codec = &requestCodec{CodecV2: codec, call: c, msg: msg, once: once}
	return append(slices.Clip(opts), grpc.ForceCodecV2(a.codec))
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

// codecOf returns the codec that gRPC takes with the options, and whether they name it. It is nil for one of an older
// interface, which returns bytes that gRPC does not free.
func codecOf(opts []grpc.CallOption) (codec encoding.CodecV2, chosen bool) {
	name := encodingproto.Name
	for _, o := range opts {
		switch o := o.(type) {
		case grpc.ForceCodecV2CallOption:
			codec, chosen = o.CodecV2, true
		case grpc.ForceCodecCallOption, grpc.CustomCodecCallOption:
			codec, chosen = nil, true
		case grpc.ContentSubtypeCallOption:
			name = o.ContentSubtype
		}
	}
	if !chosen {
		codec = encoding.GetCodecV2(name)
	}
	return codec, chosen
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
		c.rank = rank + 1
	}
	return metadata.MD{warmpathv1.MetadataDataParallelRank: {strconv.Itoa(rank)}}
}
