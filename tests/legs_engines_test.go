package tests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/race"
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

// An engineFleet is a channel to prefill and decode replicas of an engine.
type engineFleet struct {
	t     testing.TB
	e     *legEngine
	types protoreflect.MessageDescriptors
	cc    *grpc.ClientConn
	m     *meter
	rooms sync.Map // where legs meet
	first func()   // called when a call has its first answer
	ids   string   // of the last call: calls share no prefix

	mu    sync.Mutex // guards what follows
	calls int
	legs  map[string]*dynamicpb.Message // of the last call, by role
	// at is called before and behind the first message of a leg, with what stops its replica; nil = it is not.
	at func(ctx context.Context, role string, behind bool, stop func()) error
}

// startEngineFleet starts so many replicas of each role.
func startEngineFleet(t testing.TB, e *legEngine, n int) *engineFleet {
	f := &engineFleet{t: t, e: e, types: e.types(t), m: newMeter(t), first: func() {}}
	var all []policy.Attributes
	for i := range n {
		for role, a := range map[string]policy.Attributes{
			"p": {Role: policy.RolePrefill, Weight: 100, KVBootstrap: "10.0.0.9:7000"},
			"d": {Role: policy.RoleDecode, Weight: 1},
		} {
			var stop func()
			handler := everyMethod(func(_ any, s grpc.ServerStream) error { return f.serve(role, s, stop) })
			a.Address, stop = serveLegs(t, func(*grpc.Server) {}, handler)
			a.ID = fmt.Sprint(role, i)
			all = append(all, a)
		}
	}
	f.cc = dial(t, "engine:///x", grpc.WithResolvers(newDirectory("engine", members(all...))),
		client.WithConfig(config(`{"kv_aware":{}}`, `"retry_ratio":"off"`)), f.m.option)
	seen := map[string]bool{}
	eventually(t, "calls in two legs at all replicas", func() bool {
		var d client.Decision
		_, legs, err := f.call(client.WithDecision(deadline(t), &d))
		if err == nil && len(legs) == 2 {
			seen[d.Prefill], seen[d.Replica] = true, true
		}
		return len(seen) == 2*n
	})
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
func (f *engineFleet) serve(role string, s grpc.ServerStream, stop func()) error {
	q := dynamicpb.NewMessage(f.types.ByName("Request"))
	if err := s.RecvMsg(q); err != nil {
		return err
	}
	if method, _ := grpc.MethodFromServerStream(s); method != f.e.method { // an Abort: an attempt before has ended
		return s.SendMsg(dynamicpb.NewMessage(f.types.ByName("Response")))
	}
	of := metadata.ValueFromIncomingContext(s.Context(), "call")
	f.mu.Lock()
	if slices.Equal(of, []string{strconv.Itoa(f.calls)}) { // a leg of a call that was cancelled may come late
		f.legs[role] = q
	}
	at := f.at
	f.mu.Unlock()
	if at == nil {
		at = func(context.Context, string, bool, func()) error { return nil }
	}
	if f.e.room != "" {
		if err := f.meet(s.Context(), f.room(q)); err != nil {
			return err
		}
	}
	answer, n := f.e.answer, 1
	switch {
	case role == "d":
		n = 7
	case f.e.ready != "":
		answer = f.e.ready
	}
	if err := at(s.Context(), role, false, stop); err != nil {
		return err
	}
	if err := s.SendMsg(f.message("Response", answer, 0, n)); err != nil {
		return err
	}
	return at(s.Context(), role, true, stop)
}

// meet waits for the other leg in a room.
func (f *engineFleet) meet(ctx context.Context, room int64) error {
	door, _ := f.rooms.LoadOrStore(room, make(chan struct{}))
	select {
	case door.(chan struct{}) <- struct{}{}:
	case <-door.(chan struct{}):
	case <-ctx.Done():
	}
	return ctx.Err()
}

// call makes a call and returns its answers, and its legs by role.
func (f *engineFleet) call(ctx context.Context) (answers []proto.Message, legs map[string]*dynamicpb.Message, _ error) {
	f.mu.Lock()
	f.calls++
	n := f.calls
	f.legs = map[string]*dynamicpb.Message{}
	f.mu.Unlock()
	ids := make([]string, 4000)
	for i := range ids {
		ids[i] = strconv.Itoa(10_000*n + i)
	}
	f.ids = strings.Join(ids, ", ")
	ctx = metadata.AppendToOutgoingContext(ctx, "call", strconv.Itoa(n))
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
			if answers = append(answers, m); len(answers) == 1 {
				f.first()
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return answers, maps.Clone(f.legs), err
}

// check checks every field of both legs of the last call.
func (f *engineFleet) check(legs map[string]*dynamicpb.Message) {
	f.t.Helper()
	require.Len(f.t, legs, 2)
	var room int64
	if f.e.room != "" {
		room = f.room(legs["p"])
		require.Positive(f.t, room)
	} else {
		require.NotEmpty(f.t, f.e.decode)
	}
	for role, adds := range map[string]string{"p": f.e.prefill, "d": cmp.Or(f.e.decode, f.e.prefill)} {
		require.True(f.t, proto.Equal(f.request(adds, room), legs[role]), "%s: %s", role, adds)
	}
}

// idle waits until nothing is reserved.
func (f *engineFleet) idle() {
	f.t.Helper()
	eventually(f.t, "nothing is reserved", func() bool { return f.m.ongoing(f.t) == 0 })
}

// Each leg of an engine without stubs in the tree gets the application's request with exactly what the engine wants on
// top, and the application the answer of the decode leg, with the usage of both.
func TestLegsOfEveryEngine(t *testing.T) {
	for _, e := range legEngines {
		t.Run(e.name, func(t *testing.T) {
			f := startEngineFleet(t, &e, 1)
			var d client.Decision
			answers, legs, err := f.call(client.WithDecision(deadline(t), &d))
			require.NoError(t, err)
			require.Len(t, answers, 1)
			require.True(t, proto.Equal(f.message("Response", e.answer, 0, 7), answers[0]), "%v", answers[0])
			f.check(legs)
			require.Equal(t, "d0", d.Replica)
			require.Equal(t, 7, d.Usage.OutputTokens)
			f.idle()
		})
	}
}

// A replica of either role dies before or behind its first message: the call is served, unless the application has a
// part of the answer.
func TestLegsOfEveryEngineDie(t *testing.T) {
	for _, e := range legEngines {
		for _, role := range []string{"p", "d"} {
			for _, behind := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/%t", e.name, role, behind), func(t *testing.T) {
					f := startEngineFleet(t, &e, 2)
					var struck atomic.Bool
					answered := make(chan struct{})
					f.first = sync.OnceFunc(func() { close(answered) })
					f.mu.Lock()
					f.at = func(ctx context.Context, at string, is bool, stop func()) error {
						if at != role || is != behind || !struck.CompareAndSwap(false, true) {
							return nil
						}
						if at == "d" && behind { // what was sent may be lost with the connection
							select {
							case <-answered:
							case <-ctx.Done():
							}
						}
						go stop()
						<-ctx.Done()
						return ctx.Err()
					}
					f.mu.Unlock()
					answers, legs, err := f.call(deadline(t))
					if role == "d" && behind {
						require.Equal(t, codes.Unavailable, status.Code(err))
						require.Len(t, answers, 1)
					} else {
						require.NoError(t, err)
						require.Len(t, answers, 1)
						f.check(legs)
					}
					require.True(t, struck.Load() || role == "p" && behind, "the call does not wait for the end of a prefill leg")
					f.idle()
				})
			}
		}
	}
}

// Calls end at random moments: nothing stays reserved.
func TestLegsOfEveryEngineAreCancelled(t *testing.T) {
	for _, e := range legEngines {
		t.Run(e.name, func(t *testing.T) {
			f, rng := startEngineFleet(t, &e, 2), rand.New(rand.NewPCG(17, 6))
			start := time.Now()
			_, _, err := f.call(deadline(t))
			require.NoError(t, err)
			took, cancelled := time.Since(start), 0
			for n := 0; (n < race.Of(60, 20) || cancelled == 0) && !t.Failed(); n++ {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.Int64N(int64(2*took))))
				switch _, _, err := f.call(ctx); status.Code(err) {
				case codes.OK:
				case codes.DeadlineExceeded, codes.Canceled:
					cancelled++
				default:
					t.Errorf("%v", err)
				}
				cancel()
			}
			f.idle()
			_, legs, err := f.call(deadline(t))
			require.NoError(t, err)
			f.check(legs)
		})
	}
}
