package proxy

import (
	"google.golang.org/grpc"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Codec passes messages through, which are of the type *mem.BufferSlice.
type Codec struct{}

// Marshal implements [encoding.CodecV2]. The message keeps its own reference, for another attempt.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	m := v.(*mem.BufferSlice)
	m.Ref()
	return *m, nil
}

// Unmarshal implements [encoding.CodecV2].
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref()
	*v.(*mem.BufferSlice) = data
	return nil
}

// Name implements [encoding.CodecV2].
func (Codec) Name() string { return encodingproto.Name }

// raw is the option of every call to a replica.
var raw = grpc.ForceCodecV2(Codec{})
