package call

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
)

// Requests are kept up to a bound of a call and one of the channel, and what ends gives its bytes back, once.
func TestKeepIsBounded(t *testing.T) {
	const method = "/vllm.grpc.engine.VllmEngine/Generate"
	table, err := requestkey.NewTable(dialect.Dialect{Like: method})
	require.NoError(t, err)
	h := NewHandle(nil, nil)
	h.Bind(nil, &Binding{Dialects: table, Config: new(policy.Config{}.WithDefaults())}, nil)
	file := new(descriptorpb.FileDescriptorProto)
	require.NoError(t, prototext.Unmarshal([]byte(`name: "engine.proto" syntax: "proto3"
		message_type { name: "Request" field { name: "tokenized" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".Input" }
			field { name: "sampling_params" number: 4 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".Sampling" } }
		message_type { name: "Input" field { name: "input_ids" number: 2 label: LABEL_REPEATED type: TYPE_UINT32 } }
		message_type { name: "Sampling" field { name: "max_tokens" number: 8 label: LABEL_OPTIONAL type: TYPE_UINT32 } }`), file))
	described, err := protodesc.NewFile(file, nil)
	require.NoError(t, err)
	request := func(n int) proto.Message {
		in := func(b []byte, field protowire.Number, of []byte) []byte {
			return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), of)
		}
		limit := protowire.AppendVarint(protowire.AppendTag(nil, 8, protowire.VarintType), 60_000)
		m := dynamicpb.NewMessage(described.Messages().ByName("Request"))
		require.NoError(t, proto.Unmarshal(in(in(nil, 2, in(nil, 2, make([]byte, n))), 4, limit), m))
		return m
	}
	keep := func(n int) *Resume {
		r := &Resume{call: &Call{Scope: &Scope{handle: h}}}
		r.call.Attempts.call = r.call
		r.call.key.request.Method = method
		r.Keep(request(n))
		return r
	}
	kept := func(r *Resume) bool { return r.output.Load() != nil }
	require.False(t, kept(keep(maxKept)), "larger than one may be")
	var all []*Resume
	for r := keep(10); kept(r); r = keep(10) {
		all = append(all, r)
		require.LessOrEqual(t, h.resumable.Load(), int64(maxKeptAll))
	}
	require.Greater(t, h.resumable.Load(), int64(maxKeptAll-1<<20))
	for _, r := range all {
		require.True(t, r.Received(new(emptypb.Empty)))
		r.forget()
		r.forget()
		require.True(t, r.Received(new(emptypb.Empty)))
		next, _ := r.Next(nil)
		require.Nil(t, next)
	}
	require.Zero(t, h.resumable.Load())
	require.True(t, kept(keep(10)))
}
