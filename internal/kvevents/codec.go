package kvevents

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
)

// rawCodec passes encoded messages through: engines' fields are read by number, so that no proto name of theirs is
// registered in the application.
type rawCodec struct{}

// Marshal implements encoding.CodecV2.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("kvevents: cannot send a %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("kvevents: cannot receive a %T", v)
	}
	*b = data.Materialize()
	return nil
}

// Name implements encoding.CodecV2.
func (rawCodec) Name() string { return "proto" }

func callOptions() []grpc.CallOption {
	return []grpc.CallOption{grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(MaxMessage), grpc.WaitForReady(true)}
}
