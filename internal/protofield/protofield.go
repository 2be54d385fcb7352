// Package protofield reads protobuf messages of other projects by field number, so that none of their names is
// registered in the application.
package protofield

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Field is one field of an encoded message.
type Field struct {
	Number protowire.Number
	Type   protowire.Type
	Bytes  []byte // of a length-delimited one
	Value  uint64 // of a varint or one of 64 bits
}

// Each calls do for every field of an encoded message; false if the message breaks off.
func Each(b []byte, do func(Field)) (ok bool) {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		f := Field{Number: number, Type: kind}
		switch kind {
		case protowire.VarintType:
			f.Value, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			f.Value, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			f.Bytes, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return false
		}
		b = b[n:]
		do(f)
	}
	return true
}

// Last returns the last field of each number of an encoded message; false if the message breaks off.
func Last(b []byte) (fields map[protowire.Number]Field, ok bool) {
	fields = make(map[protowire.Number]Field)
	ok = Each(b, func(f Field) { fields[f.Number] = f })
	return fields, ok
}

// Raw makes a call whose request and response are encoded messages, each a *[]byte.
func Raw() grpc.CallOption { return grpc.ForceCodecV2(raw{}) }

type raw struct{}

// Marshal implements encoding.CodecV2.
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("protofield: cannot send a %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("protofield: cannot receive a %T", v)
	}
	*b = data.Materialize()
	return nil
}

// Name implements encoding.CodecV2.
func (raw) Name() string { return "proto" }
