package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
)

// A legEngine is an engine whose stubs are not in the tree: the part of its proto that a call in two legs uses. $ids
// stands for a prompt, $room for the room of the legs, $n for the number of tokens of an answer.
type legEngine struct {
	name, method string
	proto        map[string]string // message → fields, "name number type"; Request, Response and the messages in them
	request      string
	prefill      string // fields that the prefill leg adds
	decode       string // fields that the decode leg adds; "" = the same
	room         string // path of the room; "" = the decode leg begins after the answer of the prefill leg
	ready        string // the prefill leg's answer
	answer       string
}

const bootstrapFields = "bootstrap_host 1 string, bootstrap_port 2 int32, bootstrap_room 3 int64"

var legEngines = []legEngine{
	{
		name: "sglang.runtime.v1 text", method: "/sglang.runtime.v1.SglangService/TextGenerate",
		proto: map[string]string{
			"Request":  "text 1 string, sampling_params 2 Sampling, rid 8 string, disaggregated_params 14 Bootstrap",
			"Sampling": "max_new_tokens 8 int32", "Bootstrap": bootstrapFields,
			"Response": "text 1 string, meta_info 2 map:string, finished 3 bool",
		},
		request: `text: "$ids" sampling_params {max_new_tokens: 77} rid: "r"`,
		prefill: `disaggregated_params {bootstrap_host: "10.0.0.9" bootstrap_port: 7000 bootstrap_room: $room}`,
		room:    "disaggregated_params.bootstrap_room",
		answer:  `text: "a" meta_info {key: "completion_tokens" value: "$n"} finished: true`,
	}, {
		name: "sglang.runtime.v1 ids", method: "/sglang.runtime.v1.SglangService/Generate",
		proto: map[string]string{
			"Request":  "input_ids 1 []int32, sampling_params 2 Sampling, rid 7 string, disaggregated_params 13 Bootstrap",
			"Sampling": "max_new_tokens 8 int32", "Bootstrap": bootstrapFields,
			"Response": "output_ids 1 []int32, meta_info 2 map:string, finished 3 bool",
		},
		request: `input_ids: [$ids] sampling_params {max_new_tokens: 77} rid: "r"`,
		prefill: `disaggregated_params {bootstrap_host: "10.0.0.9" bootstrap_port: 7000 bootstrap_room: $room}`,
		room:    "disaggregated_params.bootstrap_room",
		answer:  `output_ids: 5 meta_info {key: "completion_tokens" value: "$n"} finished: true`,
	}, {
		name: "sglang.api.v1", method: "/sglang.api.v1.SglangService/Generate",
		proto: map[string]string{
			"Request": "rid 1 Name, input_ids 3 Ids, " +
				"bootstrap_host 12 Host, bootstrap_port 13 Number, bootstrap_room 14 Number",
			"Name": "one 1 string", "Ids": "one 1 IdList", "IdList": "ids 1 []int32",
			"Host": "one 1 HostValue", "HostValue": "value 1 string",
			"Number": "one 1 NumberValue", "NumberValue": "value 1 int64",
			"Response": "output 1 Output", "Output": "meta 2 Meta", "Meta": "prompt_tokens 2 int64, completion_tokens 3 int64",
		},
		request: `rid {one: "r"} input_ids {one {ids: [$ids]}}`,
		prefill: `bootstrap_host {one {value: "10.0.0.9"}} bootstrap_port {one {value: 7000}}` +
			` bootstrap_room {one {value: $room}}`,
		room:   "bootstrap_room.one.value",
		answer: `output {meta {prompt_tokens: 4000 completion_tokens: $n}}`,
	}, {
		name: "TokenSpeed", method: "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/Generate",
		proto: map[string]string{
			"Request": "request_id 1 string, tokenized 2 Tokenized, " +
				"sampling_params 3 Sampling, kv_bootstrap_info 11 Bootstrap",
			"Tokenized": "input_ids 1 []uint32, original_text 2 string", "Sampling": "max_new_tokens 8 uint32",
			"Bootstrap": bootstrapFields, "Response": "request_id 1 string, complete 3 Complete",
			"Complete": "prompt_tokens 3 uint32, completion_tokens 4 uint32",
		},
		request: `request_id: "r" tokenized {input_ids: [$ids]} sampling_params {max_new_tokens: 77}`,
		prefill: `kv_bootstrap_info {bootstrap_host: "10.0.0.9" bootstrap_port: 7000 bootstrap_room: $room}`,
		room:    "kv_bootstrap_info.bootstrap_room",
		answer:  `request_id: "r" complete {prompt_tokens: 4000 completion_tokens: $n}`,
	}, openEngine("OpenEngine", 4), openEngine("OpenEngine 0.1.0", 3),
}

// openEngine is OpenEngine. Its versions have prefill_ready at different field numbers.
func openEngine(name string, ready int) legEngine {
	const session = `{session_id: "s1" transfer_backend: "nixl" endpoints {host: "h" port: 7} dp_rank: 3}`
	return legEngine{
		name: name, method: "/openengine.v1.Inference/Generate",
		proto: map[string]string{
			"Request":  "request_id 1 string, token_ids 4 Ids, stopping 6 Stopping, kv 8 Kv, extra 12 Struct",
			"Ids":      "ids 1 []uint32",
			"Stopping": "max_tokens 1 uint32", "Kv": "session 1 Session",
			"Session":  "session_id 1 string, transfer_backend 2 string, endpoints 3 []Endpoint, dp_rank 4 uint32",
			"Endpoint": "host 1 string, port 2 uint32",
			"Struct":   "fields 1 map:Value", "Value": "string_value 3 string",
			"Response": fmt.Sprintf("request_id 1 string, prefill_ready %d Ready, usage 10 Usage", ready),
			"Ready":    "kv_session 1 Session", "Usage": "prompt_tokens 1 uint32, completion_tokens 2 uint32",
		},
		request: `request_id: "r" token_ids {ids: [$ids]} stopping {max_tokens: 77}`,
		prefill: `extra {fields {key: "request_type" value {string_value: "context_only"}}}`,
		decode:  `kv {session ` + session + `}`,
		ready:   `request_id: "r" prefill_ready {kv_session ` + session + `} usage {prompt_tokens: 4000}`,
		answer:  `request_id: "r" usage {prompt_tokens: 4000 completion_tokens: $n}`,
	}
}

// types builds the messages of an engine.
func (e *legEngine) types(t testing.TB) protoreflect.MessageDescriptors {
	t.Helper()
	file := &descriptorpb.FileDescriptorProto{
		Name: proto.String("engine.proto"), Package: proto.String("engine"), Syntax: proto.String("proto3"),
	}
	for name, fields := range e.proto {
		m := &descriptorpb.DescriptorProto{Name: proto.String(name)}
		for line := range strings.SplitSeq(fields, ", ") {
			words := strings.Fields(line)
			number, err := strconv.Atoi(words[1])
			require.NoError(t, err)
			f := &descriptorpb.FieldDescriptorProto{
				Name: &words[0], Number: proto.Int32(int32(number)),
				Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
			}
			kind, list := strings.CutPrefix(words[2], "[]")
			value, isMap := strings.CutPrefix(kind, "map:")
			if list || isMap {
				f.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
			}
			if isMap {
				entry := mapEntry(words[0], value)
				m.NestedType = append(m.NestedType, entry)
				kind = name + "." + entry.GetName()
			}
			setType(f, kind)
			m.Field = append(m.Field, f)
		}
		file.MessageType = append(file.MessageType, m)
	}
	d, err := protodesc.NewFile(file, new(protoregistry.Files))
	require.NoError(t, err)
	return d.Messages()
}

// setType sets the type of a field: a scalar, or a message of the file.
func setType(f *descriptorpb.FieldDescriptorProto, kind string) {
	if scalar, ok := descriptorpb.FieldDescriptorProto_Type_value["TYPE_"+strings.ToUpper(kind)]; ok {
		f.Type = descriptorpb.FieldDescriptorProto_Type(scalar).Enum()
		return
	}
	f.Type = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum()
	f.TypeName = proto.String(".engine." + kind)
}

// mapEntry is the entry message of a field of type map<string, value>.
func mapEntry(field, value string) *descriptorpb.DescriptorProto {
	var name string
	for word := range strings.SplitSeq(field, "_") {
		name += strings.ToUpper(word[:1]) + word[1:]
	}
	m := &descriptorpb.DescriptorProto{
		Name: proto.String(name + "Entry"), Options: &descriptorpb.MessageOptions{MapEntry: proto.Bool(true)},
	}
	for i, kind := range []string{"string", value} {
		f := &descriptorpb.FieldDescriptorProto{
			Name: proto.String([]string{"key", "value"}[i]), Number: proto.Int32(int32(i + 1)),
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}
		setType(f, kind)
		m.Field = append(m.Field, f)
	}
	return m
}

// An engineFleet is a channel to a prefill and a decode replica of an engine.
type engineFleet struct {
	t     testing.TB
	e     *legEngine
	types protoreflect.MessageDescriptors
	cc    *grpc.ClientConn
	m     *meter
	met   chan int64 // the prefill leg's room
	calls int
	ids   string // of the last call: calls share no prefix

	mu   sync.Mutex // guards what follows
	legs map[string]*dynamicpb.Message
}

func startEngineFleet(t testing.TB, e *legEngine) *engineFleet {
	f := &engineFleet{t: t, e: e, types: e.types(t), m: newMeter(t), met: make(chan int64)}
	serve := func(role string) string {
		l := listenLoopback(t)
		s := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error { return f.serve(role, s) }))
		var done sync.WaitGroup
		done.Go(func() { _ = s.Serve(l) })
		t.Cleanup(func() {
			s.Stop()
			done.Wait()
		})
		return l.Addr().String()
	}
	f.cc = dial(t, "engine:///x", grpc.WithResolvers(newDirectory("engine", members(
		policy.Attributes{ID: "p", Address: serve("p"), Role: policy.RolePrefill, Weight: 100, KVBootstrap: "10.0.0.9:7000"},
		policy.Attributes{ID: "d", Address: serve("d"), Role: policy.RoleDecode, Weight: 1},
	))), client.WithConfig(config(`{"prefix_cache_affinity":{}}`)), f.m.option)
	return f
}

// message builds a message of text.
func (f *engineFleet) message(name protoreflect.Name, text string, room int64, n int) *dynamicpb.Message {
	m := dynamicpb.NewMessage(f.types.ByName(name))
	text = strings.NewReplacer("$room", fmt.Sprint(room), "$n", fmt.Sprint(n)).Replace(text)
	if err := prototext.Unmarshal([]byte(text), m); err != nil {
		f.t.Error(err) // called in the goroutine of a replica
	}
	return m
}

// request is the application's request of the last call, plus the fields of a leg.
func (f *engineFleet) request(adds string, room int64) *dynamicpb.Message {
	return f.message("Request", strings.ReplaceAll(f.e.request, "$ids", f.ids)+" "+adds, room, 0)
}

// room is the room in a request.
func (f *engineFleet) room(m protoreflect.Message) int64 {
	for _, name := range strings.Split(f.e.room, ".") {
		field := m.Descriptor().Fields().ByName(protoreflect.Name(name))
		if field.Message() == nil {
			return m.Get(field).Int()
		}
		m = m.Get(field).Message()
	}
	return 0
}

// serve serves a leg. Legs with rooms answer once both are in the same one.
func (f *engineFleet) serve(role string, s grpc.ServerStream) error {
	q := dynamicpb.NewMessage(f.types.ByName("Request"))
	if err := s.RecvMsg(q); err != nil {
		return err
	}
	if method, _ := grpc.MethodFromServerStream(s); method != f.e.method { // an Abort: an earlier attempt has ended
		return s.SendMsg(dynamicpb.NewMessage(f.types.ByName("Response")))
	}
	f.mu.Lock()
	f.legs[role] = q
	f.mu.Unlock()
	if f.e.room != "" {
		if err := f.meet(s.Context(), role, f.room(q)); err != nil {
			return err
		}
	}
	switch {
	case role == "d":
		return s.SendMsg(f.message("Response", f.e.answer, 0, 7))
	case f.e.ready != "":
		return s.SendMsg(f.message("Response", f.e.ready, 0, 1))
	}
	return s.SendMsg(f.message("Response", f.e.answer, 0, 1))
}

// meet waits for the other leg, which must be in the same room.
func (f *engineFleet) meet(ctx context.Context, role string, room int64) error {
	if role == "p" {
		select {
		case f.met <- room:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case other := <-f.met:
		if other != room {
			return fmt.Errorf("room %d, not %d", room, other)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// call makes a call and returns its answers, and its legs by role.
func (f *engineFleet) call(ctx context.Context) (answers []proto.Message, legs map[string]*dynamicpb.Message, _ error) {
	f.calls++
	ids := make([]string, 4000)
	for i := range ids {
		ids[i] = fmt.Sprint(10_000*f.calls + i)
	}
	f.ids = strings.Join(ids, ", ")
	f.mu.Lock()
	f.legs = map[string]*dynamicpb.Message{}
	f.mu.Unlock()
	s, err := f.cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, f.e.method)
	if err == nil {
		err = s.SendMsg(f.request("", 0))
	}
	if err == nil {
		err = s.CloseSend()
	}
	for err == nil {
		m := dynamicpb.NewMessage(f.types.ByName("Response"))
		if err = s.RecvMsg(m); err == nil {
			answers = append(answers, m)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return answers, maps.Clone(f.legs), err
}

// Each leg of an engine without stubs in the tree gets the application's request plus exactly the fields that the
// engine needs. The application gets the answer of the decode leg, with the usage of both.
func TestLegsOfEveryEngine(t *testing.T) {
	for _, e := range legEngines {
		t.Run(e.name, func(t *testing.T) {
			f := startEngineFleet(t, &e)
			eventually(t, "a call in two legs", func() bool {
				_, legs, err := f.call(deadline(t))
				return err == nil && len(legs) == 2
			})
			var d client.Decision
			answers, legs, err := f.call(client.WithDecision(deadline(t), &d))
			require.NoError(t, err)
			require.Len(t, answers, 1)
			require.True(t, proto.Equal(f.message("Response", e.answer, 0, 7), answers[0]), "%v", answers[0])
			var room int64
			if e.room != "" {
				room = f.room(legs["p"])
				require.Positive(t, room)
			} else {
				require.NotEmpty(t, e.decode)
			}
			if e.decode == "" {
				e.decode = e.prefill
			}
			for role, adds := range map[string]string{"p": e.prefill, "d": e.decode} {
				want := f.request(adds, room)
				require.True(t, proto.Equal(want, legs[role]), "%s: %s", role, adds)
			}
			require.Equal(t, "d", d.Replica)
			require.Equal(t, 7, d.Usage.OutputTokens)
			eventually(t, "nothing is reserved", func() bool { return f.m.ongoing(t) == 0 })
		})
	}
}
