package requestkey

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/warmpath/warmpath/balancer/dialect"
)

// A pv is one field of a message to build: "4.1", "3#0.2" for the first message
// in the repeated field 3, "2[key]" for a map entry, "1:prompt" to name a field.
type pv struct {
	path  string
	value any
}

// schema is what the paths of a message imply about its type.
type schema struct {
	name   string
	fields map[int32]*schemaField
}

type schemaField struct {
	name   string
	typ    descriptorpb.FieldDescriptorProto_Type
	list   bool
	isMap  bool
	msg    *schema
	number int32
}

func segment(s string) (num int32, name string, index int, key string, isMap bool) {
	index = -1
	if s, key, isMap = strings.Cut(s, "["); isMap {
		key = strings.TrimSuffix(key, "]")
	}
	if rest, i, ok := strings.Cut(s, "#"); ok {
		s = rest
		index, _ = strconv.Atoi(i)
	}
	if n, rest, ok := strings.Cut(s, ":"); ok {
		s, name = n, rest
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(s)
	}
	if name == "" {
		name = fmt.Sprintf("f%d", n)
	}
	return int32(n), name, index, key, isMap
}

func (s *schema) add(path []string, value any) {
	num, name, index, _, isMap := segment(path[0])
	f := s.fields[num]
	if f == nil {
		f = &schemaField{name: name, number: num, isMap: isMap, list: index >= 0}
		s.fields[num] = f
	}
	if len(path) > 1 {
		f.typ = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
		if f.msg == nil {
			f.msg = &schema{name: fmt.Sprintf("%s_%d", s.name, num), fields: map[int32]*schemaField{}}
		}
		f.msg.add(path[1:], value)
		return
	}
	switch value.(type) {
	case string:
		f.typ = descriptorpb.FieldDescriptorProto_TYPE_STRING
	case []byte:
		f.typ = descriptorpb.FieldDescriptorProto_TYPE_BYTES
	case uint32:
		f.typ = descriptorpb.FieldDescriptorProto_TYPE_UINT32
	case int64:
		f.typ = descriptorpb.FieldDescriptorProto_TYPE_INT64
	case float32:
		f.typ = descriptorpb.FieldDescriptorProto_TYPE_FLOAT
	case float64:
		f.typ = descriptorpb.FieldDescriptorProto_TYPE_DOUBLE
	case bool:
		f.typ = descriptorpb.FieldDescriptorProto_TYPE_BOOL
	case []uint32:
		f.typ, f.list = descriptorpb.FieldDescriptorProto_TYPE_UINT32, true
	case []int32:
		f.typ, f.list = descriptorpb.FieldDescriptorProto_TYPE_INT32, true
	case []string:
		f.typ, f.list = descriptorpb.FieldDescriptorProto_TYPE_STRING, true
	case [][]byte:
		f.typ, f.list = descriptorpb.FieldDescriptorProto_TYPE_BYTES, true
	default:
		panic(fmt.Sprintf("%T", value))
	}
}

func (s *schema) declare(file *descriptorpb.FileDescriptorProto, oneof []int32) {
	m := &descriptorpb.DescriptorProto{Name: proto.String(s.name)}
	file.MessageType = append(file.MessageType, m)
	for _, f := range s.fields {
		fd := protoField(f.name, f.number, f.typ, f.list || f.isMap)
		if f.msg != nil {
			fd.TypeName = proto.String(".t." + f.msg.name)
			f.msg.declare(file, nil)
		}
		if f.isMap {
			entry := protoField("value", 2, f.typ, false)
			entry.TypeName = fd.TypeName
			name := "F" + strconv.Itoa(int(f.number)) + "Entry"
			fd.Type = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum()
			fd.TypeName = proto.String(".t." + s.name + "." + name)
			m.NestedType = append(m.NestedType, &descriptorpb.DescriptorProto{
				Name:    proto.String(name),
				Field:   []*descriptorpb.FieldDescriptorProto{protoField("key", 1, descriptorpb.FieldDescriptorProto_TYPE_STRING, false), entry},
				Options: &descriptorpb.MessageOptions{MapEntry: proto.Bool(true)},
			})
		}
		switch f.typ {
		case descriptorpb.FieldDescriptorProto_TYPE_BOOL, descriptorpb.FieldDescriptorProto_TYPE_FLOAT: // optional: zero can be set
			fd.Proto3Optional, fd.OneofIndex = proto.Bool(true), proto.Int32(int32(len(m.OneofDecl)))
			m.OneofDecl = append(m.OneofDecl, &descriptorpb.OneofDescriptorProto{Name: proto.String("_" + f.name)})
		}
		for _, n := range oneof {
			if n == f.number {
				if m.OneofDecl == nil {
					m.OneofDecl = []*descriptorpb.OneofDescriptorProto{{Name: proto.String("choice")}}
				}
				fd.OneofIndex = proto.Int32(0)
			}
		}
		m.Field = append(m.Field, fd)
	}
}

// build makes a dynamic message that holds the fields.
func build(t testing.TB, oneof []int32, fields ...pv) *dynamicpb.Message {
	t.Helper()
	s := &schema{name: "M", fields: map[int32]*schemaField{}}
	for _, f := range fields {
		s.add(strings.Split(f.path, "."), f.value)
	}
	file := &descriptorpb.FileDescriptorProto{Name: proto.String("t.proto"), Package: proto.String("t"), Syntax: proto.String("proto3")}
	s.declare(file, oneof)
	fd, err := protodesc.NewFile(file, new(protoregistry.Files))
	require.NoError(t, err)
	msg := dynamicpb.NewMessage(fd.Messages().ByName("M"))
	for _, f := range fields {
		assign(msg, strings.Split(f.path, "."), f.value)
	}
	return msg
}

func assign(m protoreflect.Message, path []string, value any) {
	num, _, index, key, isMap := segment(path[0])
	fd := m.Descriptor().Fields().ByNumber(protoreflect.FieldNumber(num))
	switch {
	case isMap && len(path) == 1:
		m.Mutable(fd).Map().Set(protoreflect.ValueOfString(key).MapKey(), protoreflect.ValueOf(value))
	case isMap:
		assign(m.Mutable(fd).Map().Mutable(protoreflect.ValueOfString(key).MapKey()).Message(), path[1:], value)
	case len(path) > 1 && index >= 0:
		l := m.Mutable(fd).List()
		for l.Len() <= index {
			l.AppendMutable()
		}
		assign(l.Get(index).Message(), path[1:], value)
	case len(path) > 1:
		assign(m.Mutable(fd).Message(), path[1:], value)
	case fd.IsList():
		l := m.Mutable(fd).List()
		switch s := value.(type) {
		case []uint32:
			for _, x := range s {
				l.Append(protoreflect.ValueOf(x))
			}
		case []int32:
			for _, x := range s {
				l.Append(protoreflect.ValueOf(x))
			}
		case []string:
			for _, x := range s {
				l.Append(protoreflect.ValueOf(x))
			}
		case [][]byte:
			for _, x := range s {
				l.Append(protoreflect.ValueOf(x))
			}
		}
	default:
		m.Set(fd, protoreflect.ValueOf(value))
	}
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	require.NoError(t, err)
	return b
}

func mustTable(t testing.TB, user ...dialect.Dialect) *Table {
	t.Helper()
	table, err := NewTable(user...)
	require.NoError(t, err)
	return table
}
