package tests

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
	sglangpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/sglang/grpc/scheduler"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
)

// The usage in a message is the same whatever shape the message has: generated, dynamic, encoded, or of a generated type
// that is too old to know its fields.
func TestUsageIsTheSameInAllShapes(t *testing.T) {
	own := "/grpc.testing.TestService/UnaryCall"
	table, err := requestkey.NewTable(dialect.Dialect{Methods: []string{own}, Usage: dialect.Usage{
		Prompt: "payload.type|grpclb_route_type", Output: "username", OutputDelta: "payload.type|grpclb_route_type", Cached: "hostname|1.1",
	}})
	require.NoError(t, err)
	draw := rand.New(rand.NewPCG(1, 2))
	for method, kind := range map[string]proto.Message{
		"/vllm.grpc.engine.VllmEngine/Generate":           new(enginepb.GenerateResponse),
		"/vllm.Inference/GenerateStream":                  new(vllmpb.GenerateResponse),
		"/sglang.grpc.scheduler.SglangScheduler/Generate": new(sglangpb.GenerateResponse),
		own: new(testpb.SimpleResponse),
	} {
		m, some := table.Lookup(method), 0
		for range 300 {
			generated := kind.ProtoReflect().New().Interface()
			fill(generated.ProtoReflect(), draw, 4)
			raw, err := proto.Marshal(generated)
			require.NoError(t, err)
			dynamic := dynamicpb.NewMessage(kind.ProtoReflect().Descriptor())
			require.NoError(t, proto.Unmarshal(raw, dynamic))
			want := policy.NoUsage
			found := m.Usage(&want, generated)
			shapes := map[string]any{"dynamic": dynamic}
			if method != own { // which names its fields
				old := new(testpb.Empty)
				require.NoError(t, proto.Unmarshal(raw, old))
				shapes["encoded"], shapes["old"] = raw, old
			}
			for shape, msg := range shapes {
				got := policy.NoUsage
				require.Equal(t, found, m.Usage(&got, msg), "%s %s %v", method, shape, generated)
				require.Equal(t, want, got, "%s %s %v", method, shape, generated)
			}
			if found {
				some++
			}
		}
		require.Greater(t, some, 50, method)
	}
}

// fill sets some fields of a message, and of those in it, to small values.
func fill(m protoreflect.Message, draw *rand.Rand, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if draw.IntN(2) == 0 || depth == 0 || fd.IsMap() {
			continue
		}
		value := func() protoreflect.Value {
			switch n := draw.IntN(4); fd.Kind() {
			case protoreflect.MessageKind:
				v := m.NewField(fd)
				if fd.IsList() {
					v = v.List().NewElement()
				}
				fill(v.Message(), draw, depth-1)
				return v
			case protoreflect.EnumKind:
				return protoreflect.ValueOfEnum(protoreflect.EnumNumber(n))
			case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
				return protoreflect.ValueOfUint32(uint32(n))
			case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
				return protoreflect.ValueOfUint64(uint64(n))
			case protoreflect.Int32Kind:
				return protoreflect.ValueOfInt32(int32(n))
			case protoreflect.Int64Kind:
				return protoreflect.ValueOfInt64(int64(n))
			case protoreflect.StringKind:
				return protoreflect.ValueOfString(fmt.Sprint(n))
			}
			return protoreflect.Value{}
		}
		switch v := value(); {
		case !v.IsValid():
		case fd.IsList():
			m.Mutable(fd).List().Append(v)
			m.Mutable(fd).List().Append(value())
		default:
			m.Set(fd, v)
		}
	}
}
