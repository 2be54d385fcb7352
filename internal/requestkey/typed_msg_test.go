package requestkey

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/runtime/protoimpl"
	"google.golang.org/protobuf/types/descriptorpb"
)

// Messages of vLLM's requests and responses as protoc-gen-go writes them, in a registry of their own.

type genRequest struct {
	state         protoimpl.MessageState `protogen:"open.v1"`
	RequestId     string                 `protobuf:"bytes,1,opt,name=request_id,json=requestId,proto3"`
	Model         string                 `protobuf:"bytes,2,opt,name=model,proto3"`
	Prompt        isGenPrompt            `protobuf_oneof:"prompt"`
	Stopping      *genCount              `protobuf:"bytes,8,opt,name=stopping,proto3"`
	Kv            *genKv                 `protobuf:"bytes,10,opt,name=kv,proto3"`
	SessionId     *string                `protobuf:"bytes,13,opt,name=session_id,json=sessionId,proto3,oneof"`
	LoraName      *string                `protobuf:"bytes,15,opt,name=lora_name,json=loraName,proto3,oneof"`
	unknownFields protoimpl.UnknownFields
	sizeCache     protoimpl.SizeCache
}

type isGenPrompt interface{ isGenPrompt() }

type genText struct {
	Text string `protobuf:"bytes,3,opt,name=text,proto3,oneof"`
}

type genTokenIds struct {
	TokenIds *genIds `protobuf:"bytes,4,opt,name=token_ids,json=tokenIds,proto3,oneof"`
}

func (*genText) isGenPrompt()     {}
func (*genTokenIds) isGenPrompt() {}

type genIds struct {
	state         protoimpl.MessageState `protogen:"open.v1"`
	Ids           []uint32               `protobuf:"varint,1,rep,packed,name=ids,proto3"`
	unknownFields protoimpl.UnknownFields
	sizeCache     protoimpl.SizeCache
}

type genCount struct {
	state         protoimpl.MessageState `protogen:"open.v1"`
	N             uint32                 `protobuf:"varint,1,opt,name=n,proto3"`
	unknownFields protoimpl.UnknownFields
	sizeCache     protoimpl.SizeCache
}

type genKv struct {
	state         protoimpl.MessageState `protogen:"open.v1"`
	CacheSalt     string                 `protobuf:"bytes,2,opt,name=cache_salt,json=cacheSalt,proto3"`
	unknownFields protoimpl.UnknownFields
	sizeCache     protoimpl.SizeCache
}

type genResponse struct {
	state         protoimpl.MessageState `protogen:"open.v1"`
	PromptInfo    *genCount              `protobuf:"bytes,1,opt,name=prompt_info,json=promptInfo,proto3"`
	Outputs       []*genOutput           `protobuf:"bytes,2,rep,name=outputs,proto3"`
	unknownFields protoimpl.UnknownFields
	sizeCache     protoimpl.SizeCache
}

type genOutput struct {
	state         protoimpl.MessageState `protogen:"open.v1"`
	NumTokens     uint32                 `protobuf:"varint,3,opt,name=num_tokens,json=numTokens,proto3"`
	FinishInfo    *genCount              `protobuf:"bytes,8,opt,name=finish_info,json=finishInfo,proto3"`
	unknownFields protoimpl.UnknownFields
	sizeCache     protoimpl.SizeCache
}

var genInfos = make([]protoimpl.MessageInfo, 6)

func genReflect(i int, p protoimpl.Pointer) protoreflect.Message {
	ms := protoimpl.X.MessageStateOf(p)
	if ms.LoadMessageInfo() == nil {
		ms.StoreMessageInfo(&genInfos[i])
	}
	return ms
}

func (x *genRequest) ProtoReflect() protoreflect.Message {
	if x == nil {
		return genInfos[0].MessageOf(x)
	}
	return genReflect(0, protoimpl.Pointer(x))
}
func (x *genIds) ProtoReflect() protoreflect.Message {
	if x == nil {
		return genInfos[1].MessageOf(x)
	}
	return genReflect(1, protoimpl.Pointer(x))
}
func (x *genCount) ProtoReflect() protoreflect.Message {
	if x == nil {
		return genInfos[2].MessageOf(x)
	}
	return genReflect(2, protoimpl.Pointer(x))
}
func (x *genKv) ProtoReflect() protoreflect.Message {
	if x == nil {
		return genInfos[3].MessageOf(x)
	}
	return genReflect(3, protoimpl.Pointer(x))
}
func (x *genResponse) ProtoReflect() protoreflect.Message {
	if x == nil {
		return genInfos[4].MessageOf(x)
	}
	return genReflect(4, protoimpl.Pointer(x))
}
func (x *genOutput) ProtoReflect() protoreflect.Message {
	if x == nil {
		return genInfos[5].MessageOf(x)
	}
	return genReflect(5, protoimpl.Pointer(x))
}

func init() {
	genInfos[0].OneofWrappers = []any{(*genText)(nil), (*genTokenIds)(nil)}
	oneof := func(f *descriptorpb.FieldDescriptorProto, i int32, optional bool) *descriptorpb.FieldDescriptorProto {
		f.OneofIndex = proto.Int32(i)
		if optional {
			f.Proto3Optional = proto.Bool(true)
		}
		return f
	}
	str, u32 := descriptorpb.FieldDescriptorProto_TYPE_STRING, descriptorpb.FieldDescriptorProto_TYPE_UINT32
	msg := func(name, typ string, num int32) *descriptorpb.FieldDescriptorProto {
		f := protoField(name, num, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE, false)
		f.TypeName = proto.String(".gen." + typ)
		return f
	}
	outputs := msg("outputs", "Output", 2)
	outputs.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
	file := &descriptorpb.FileDescriptorProto{
		Name: proto.String("gen.proto"), Package: proto.String("gen"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: proto.String("Request"), Field: []*descriptorpb.FieldDescriptorProto{
				protoField("request_id", 1, str, false), protoField("model", 2, str, false),
				oneof(protoField("text", 3, str, false), 0, false), oneof(msg("token_ids", "Ids", 4), 0, false),
				msg("stopping", "Count", 8), msg("kv", "Kv", 10),
				oneof(protoField("session_id", 13, str, false), 1, true), oneof(protoField("lora_name", 15, str, false), 2, true),
			}, OneofDecl: []*descriptorpb.OneofDescriptorProto{
				{Name: proto.String("prompt")}, {Name: proto.String("_session_id")}, {Name: proto.String("_lora_name")},
			}},
			{Name: proto.String("Ids"), Field: []*descriptorpb.FieldDescriptorProto{protoField("ids", 1, u32, true)}},
			{Name: proto.String("Count"), Field: []*descriptorpb.FieldDescriptorProto{protoField("n", 1, u32, false)}},
			{Name: proto.String("Kv"), Field: []*descriptorpb.FieldDescriptorProto{protoField("cache_salt", 2, str, false)}},
			{Name: proto.String("Response"), Field: []*descriptorpb.FieldDescriptorProto{msg("prompt_info", "Count", 1), outputs}},
			{Name: proto.String("Output"), Field: []*descriptorpb.FieldDescriptorProto{protoField("num_tokens", 3, u32, false), msg("finish_info", "Count", 8)}},
		},
	}
	raw, err := proto.Marshal(file)
	if err != nil {
		panic(err)
	}
	protoimpl.TypeBuilder{
		File: protoimpl.DescBuilder{
			GoPackagePath: "dialect", RawDescriptor: raw, NumMessages: 6, FileRegistry: new(protoregistry.Files),
		},
		GoTypes: []any{(*genRequest)(nil), (*genIds)(nil), (*genCount)(nil), (*genKv)(nil), (*genResponse)(nil), (*genOutput)(nil)},
		// token_ids, stopping, kv; prompt_info, outputs; finish_info
		DependencyIndexes: []int32{1, 2, 3, 2, 5, 2, 6, 6, 6, 6, 0},
		MessageInfos:      genInfos,
		TypeRegistry:      new(protoregistry.Types),
	}.Build()
}

func protoField(name string, num int32, typ descriptorpb.FieldDescriptorProto_Type, list bool) *descriptorpb.FieldDescriptorProto {
	f := &descriptorpb.FieldDescriptorProto{
		Name: proto.String(name), Number: proto.Int32(num), Type: typ.Enum(),
		Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
	}
	if list {
		f.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
	}
	return f
}

// oldRequest is a message of github.com/golang/protobuf v1.
type oldRequest struct {
	Prompt *string     `protobuf:"bytes,3,opt,name=prompt"`
	Kv     *oldKv      `protobuf:"bytes,10,opt,name=kv"`
	Tokens []int32     `protobuf:"varint,5,rep,packed,name=input_ids"`
	Choice isOldChoice `protobuf_oneof:"choice"`
}

type oldKv struct {
	CacheSalt *string `protobuf:"bytes,2,opt,name=cache_salt"`
}

type isOldChoice interface{ isOldChoice() }

type oldSession struct {
	SessionId string `protobuf:"bytes,13,opt,name=session_id,oneof"`
}

func (*oldSession) isOldChoice() {}

func (*oldRequest) Reset()                   {}
func (*oldRequest) String() string           { return "" }
func (*oldRequest) ProtoMessage()            {}
func (*oldRequest) XXX_OneofWrappers() []any { return []any{(*oldSession)(nil)} }

func (*oldKv) Reset()         {}
func (*oldKv) String() string { return "" }
func (*oldKv) ProtoMessage()  {}

// gogoRequest is a message of gogo/protobuf with a message that is not nullable, which protoreflect refuses.
type gogoRequest struct {
	Kv      gogoKv `protobuf:"bytes,10,opt,name=kv"`
	encoded []byte
}

type gogoKv struct {
	CacheSalt string `protobuf:"bytes,2,opt,name=cache_salt"`
}

func (*gogoRequest) Reset()                     {}
func (*gogoRequest) String() string             { return "" }
func (*gogoRequest) ProtoMessage()              {}
func (r *gogoRequest) Marshal() ([]byte, error) { return r.encoded, nil }
