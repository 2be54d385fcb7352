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

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// codecOnce is the codec of a call whose request message can be encoded only once: gRPC frees what a codec returns
// when it has sent it, and a codec may return memory of the message itself. It keeps the encoded message until no
// attempt follows, and returns it for each of them.
type codecOnce struct {
	encoding.CodecV2
	msg any // the request message

	mu      sync.Mutex // guards the fields below
	encoded bool
	freed   bool
	data    mem.BufferSlice
}

// Marshal implements [encoding.CodecV2].
func (c *codecOnce) Marshal(m any) (mem.BufferSlice, error) {
	if !sameMessage(m, c.msg) {
		return c.CodecV2.Marshal(m)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.freed:
		return nil, status.Error(codes.Canceled, "warmpath: the call has ended")
	case !c.encoded:
		data, err := c.CodecV2.Marshal(m)
		if err != nil {
			return nil, err
		}
		c.data, c.encoded = data, true
	}
	c.data.Ref()
	return slices.Clone(c.data), nil
}

// free gives the encoded message back: no attempt follows.
func (c *codecOnce) free() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.data.Free()
	c.freed, c.data = true, nil
}

// Sends gives the request message, which is sent once for each attempt. It returns the options of the attempts.
func (a *Attempts) Sends(msg any, opts []grpc.CallOption) []grpc.CallOption {
	a.call.mu.Lock()
	defer a.call.mu.Unlock()
	a.call.key.msg = msg
	codec, chosen := codecOf(opts)
	if _, a.single = msg.(*grpc.PreparedMsg); a.single || codec == nil {
		return opts
	}
	switch msg.(type) {
	case proto.Message, protoadapt.MessageV1:
		if !chosen && codec.Name() == encodingproto.Name { // gRPC may encode it as often as it likes
			return opts
		}
	}
	a.codec = &codecOnce{CodecV2: codec, msg: msg}
	return append(slices.Clip(opts), grpc.ForceCodecV2(a.codec))
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

// RankMetadata returns the metadata with the data-parallel rank that was chosen. They are nil where there is one rank,
// where the replica is to choose, and where the application chose.
func RankMetadata(ctx context.Context, d *policy.Decision) metadata.MD {
	if d.Replica.Ranks <= 1 || d.Rank() < 0 ||
		len(metadata.ValueFromOutgoingContext(ctx, warmpathv1.MetadataDataParallelRank)) > 0 {
		return nil
	}
	return metadata.MD{warmpathv1.MetadataDataParallelRank: {strconv.Itoa(d.Rank())}}
}

// RankMetadata is [RankMetadata] for an attempt that is about to be sent; a message that has a rank is the
// application's choice, too. The rank is written into the message where its dialect has a field for it.
func (c *Call) RankMetadata(ctx context.Context) metadata.MD {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rank = 0
	d := c.Decision()
	if d.Replica.Ranks <= 1 {
		return nil
	}
	m, md := c.reserved.binding.dialect(&c.key.request), RankMetadata(ctx, d)
	switch {
	case m.HasRank(c.key.msg):
		return nil
	case md != nil && m.TakesRank():
		c.rank = d.Rank() + 1
	}
	return md
}

// Ranked returns the options of an attempt: where its message has a field for the data-parallel rank, and the replica
// may have several, the rank is written when gRPC encodes the message, since only then the replica is certain.
func (a *Attempts) Ranked(opts []grpc.CallOption) []grpc.CallOption {
	c := a.call
	if r := c.Decision().Replica; r != nil && r.Ranks <= 1 && c.reserved.brought.Load() {
		return opts
	}
	if b := c.handle.bound.Load(); b != nil && !b.dialect(&c.key.request).TakesRank() {
		return opts
	}
	inner, _ := codecOf(opts)
	if inner == nil || inner.Name() != encodingproto.Name { // of another encoding the end is not known
		return opts
	}
	return append(slices.Clip(opts), grpc.ForceCodecV2(rankCodec{inner, c}))
}

// rankCodec appends the rank to encoded messages: of a repeated scalar the last one counts.
type rankCodec struct {
	encoding.CodecV2
	call *Call
}

// Marshal implements encoding.CodecV2.
func (r rankCodec) Marshal(v any) (mem.BufferSlice, error) {
	out, err := r.CodecV2.Marshal(v)
	c := r.call
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || c.rank == 0 {
		return out, err
	}
	if m := c.reserved.binding.dialect(&c.key.request); !m.HasRank(v) {
		if field := m.EncodedRank(c.rank - 1); field != nil {
			out = append(slices.Clip(out), mem.SliceBuffer(field))
		}
	}
	return out, nil
}
