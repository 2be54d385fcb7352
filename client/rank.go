package client

import (
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/warmpath/warmpath/internal/channel"
)

// ranked returns the options of an attempt: where its message has a field for the data-parallel rank, and the replica may
// have several, the rank is written when gRPC encodes the message, since only then the replica is certain.
func (a *attempts) ranked(opts []grpc.CallOption) []grpc.CallOption {
	if !a.call.MayRank() {
		return opts
	}
	inner, _ := codecOf(opts)
	if inner == nil || inner.Name() != encodingproto.Name { // of another encoding the end is not known
		return opts
	}
	return append(slices.Clip(opts), grpc.ForceCodecV2(rankCodec{inner, a.call}))
}

// rankCodec appends the rank to encoded messages: of a repeated scalar the last one counts.
type rankCodec struct {
	encoding.CodecV2
	call *channel.Call
}

// Marshal implements encoding.CodecV2.
func (c rankCodec) Marshal(v any) (mem.BufferSlice, error) {
	out, err := c.CodecV2.Marshal(v)
	if err != nil {
		return nil, err
	}
	if field := c.call.EncodedRank(v); field != nil {
		out = append(slices.Clip(out), mem.SliceBuffer(field))
	}
	return out, nil
}
