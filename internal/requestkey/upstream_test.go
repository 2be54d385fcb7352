package requestkey_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
)

// upstreamMedia are the fields of requests that hold media, as published by the engines: each by its method, the numbers
// on the way to it, and where the token ids of the request are. smg-grpc-proto 0.4.28, vLLM, OpenEngine and SGLang.
var upstreamMedia = []struct{ method, tokens, fields string }{
	{"/vllm.Inference/Generate", "4.1", "14.2 14.4 14.6 14.7.5"},
	{"/vllm.grpc.engine.VllmEngine/Generate", "2.2", "7.2 7.3 7.6 10.1.2 11.2 11.3 11.6"},
	{"/sglang.grpc.scheduler.SglangScheduler/Generate", "2.2", "3.1 3.2 3.3 3.4 3.5 3.6 3.7 3.9"},
	{"/sglang.grpc.scheduler.SglangScheduler/Embed", "2.2", "4.1 4.2 4.3 4.4 4.5 4.6 4.7 4.9"},
	{"/sglang.api.v1.SglangService/Generate", "3.1.1", "19.1 20.1 21.1 22.1"},
	{"/trtllm.TrtllmService/Generate", "2.2", "15.1"},
	{"/tokenspeed.grpc.scheduler.TokenSpeedScheduler/Generate", "2.1", "9.1.2 9.1.3 9.1.4"},
	{"/openengine.v1.Inference/Generate", "4.1", "10.2 10.3 10.4 10.6"},
}

// at is a text at the end of a path of field numbers, as an encoded message.
func at(path, text string) []byte {
	b := []byte(text)
	steps := strings.Split(path, ".")
	for _, step := range slices.Backward(steps) {
		n, _ := strconv.Atoi(step)
		b = protowire.AppendBytes(protowire.AppendTag(nil, protowire.Number(n), protowire.BytesType), b)
	}
	return b
}

// keyWith is the key of a request of a method with token ids and more.
func keyWith(t testing.TB, method, tokens string, more ...byte) string {
	t.Helper()
	table, err := requestkey.NewTable()
	require.NoError(t, err)
	var q policy.Request
	require.NoError(t, table.Lookup(method).Request(&q, policy.UsesPrompt, slices.Concat(at(tokens, "\x01\x02\x03\x04"), more)))
	require.Len(t, q.Prompt.Tokens, 4, method)
	return fmt.Sprint(q.Prompt.Tokens, q.CacheSalt)
}

// A request with another medium has another key, whichever field holds the medium.
func TestEveryMediumIsInTheKey(t *testing.T) {
	for _, tt := range upstreamMedia {
		none := keyWith(t, tt.method, tt.tokens)
		for field := range strings.FieldsSeq(tt.fields) {
			one, two := keyWith(t, tt.method, tt.tokens, at(field, "one")...), keyWith(t, tt.method, tt.tokens, at(field, "two")...)
			require.NotEqual(t, none, one, "%s %s", tt.method, field)
			require.NotEqual(t, one, two, "%s %s", tt.method, field)
			require.Equal(t, one, keyWith(t, tt.method, tt.tokens, at(field, "one")...))
		}
	}
}

// A medium begins at its first placeholder: prompts that differ in it share the blocks before.
func TestMediaOfTokenSpeedBeginAtTheirPlaceholder(t *testing.T) {
	const method = "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/Generate"
	table, err := requestkey.NewTable()
	require.NoError(t, err)
	tokens := func(hash string) []uint32 {
		item := slices.Concat(at("2", hash), at("5", "\x08\x03"), at("5", "\x08\x02"))
		var q policy.Request
		require.NoError(t, table.Lookup(method).Request(&q, policy.UsesPrompt, slices.Concat(at("2.1", "\x01\x02\x03\x04"), at("9.1", string(item)))))
		require.Empty(t, q.CacheSalt)
		return q.Prompt.Tokens
	}
	a, b := tokens("a"), tokens("b")
	require.Equal(t, []uint32{1, 2}, a[:2])
	require.Equal(t, a[:2], b[:2])
	require.NotEqual(t, a[2], b[2])
}

// mediaNames are the names of fields that hold media.
var mediaNames = regexp.MustCompile(`^(extra_)?mm_|^media|_data$|_urls?$|^multimodal`)

// noMedia are fields with such names that hold none.
var noMedia = regexp.MustCompile(`(^|\.)(mm_placeholders|tensor_data)(\.|$)|_placeholders$`)

// The descriptors that the engines publish now have no medium that a built-in dialect ignores. WARMPATH_ENGINE_PROTOS
// names a Python interpreter with the package smg-grpc-proto.
func TestNoUpstreamMediumIsIgnored(t *testing.T) {
	python := os.Getenv("WARMPATH_ENGINE_PROTOS")
	if python == "" {
		require.Empty(t, os.Getenv("WARMPATH_REQUIRE_ALL"), "WARMPATH_ENGINE_PROTOS names no interpreter")
		t.Skip("set WARMPATH_ENGINE_PROTOS to $(.ci/engines)/venv/bin/python")
	}
	set, err := exec.CommandContext(t.Context(), python, "-c", `
import sys
from google.protobuf import descriptor_pb2 as d
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2, sglang_scheduler_pb2, tokenspeed_scheduler_pb2, trtllm_service_pb2, mlx_engine_pb2
s, seen = d.FileDescriptorSet(), set()
def add(f):
    if f.name in seen: return
    seen.add(f.name)
    for x in f.dependencies: add(x)
    f.CopyToProto(s.file.add())
for m in (common_pb2, vllm_engine_pb2, sglang_scheduler_pb2, tokenspeed_scheduler_pb2, trtllm_service_pb2, mlx_engine_pb2): add(m.DESCRIPTOR)
sys.stdout.buffer.write(s.SerializeToString())`).Output()
	require.NoError(t, err)
	var files descriptorpb.FileDescriptorSet
	require.NoError(t, proto.Unmarshal(set, &files))
	upstream, err := protodesc.NewFiles(&files)
	require.NoError(t, err)
	tokensOf := map[string]string{}
	for _, d := range requestkey.Builtin {
		for _, m := range d.Methods {
			tokensOf[m] = string(d.Tokens)
		}
	}
	walked := 0
	each(upstream, func(method string, in protoreflect.MessageDescriptor) {
		if tokensOf[method] == "" {
			return
		}
		none := keyWith(t, method, tokensOf[method])
		leaves(in, "", "", false, map[protoreflect.FullName]bool{}, func(path, names string) {
			walked++
			require.NotEqual(t, none, keyWith(t, method, tokensOf[method], at(path, "one")...), "%s ignores %s (%s)", method, names, path)
		})
	})
	require.Greater(t, walked, 10)
}

func each(files *protoregistry.Files, do func(method string, in protoreflect.MessageDescriptor)) {
	files.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				do(fmt.Sprintf("/%s/%s", s.FullName(), m.Name()), m.Input())
			}
		}
		return true
	})
}

// leaves calls do for every text, bytes or map in a field that holds media, or in a message of such a field.
func leaves(m protoreflect.MessageDescriptor, path, names string, media bool, open map[protoreflect.FullName]bool, do func(path, names string)) {
	if open[m.FullName()] {
		return
	}
	open[m.FullName()] = true
	defer delete(open, m.FullName())
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		at, name := fmt.Sprintf("%s.%d", path, f.Number()), names+"."+string(f.Name())
		is := media || mediaNames.MatchString(string(f.Name()))
		switch {
		case noMedia.MatchString(string(f.Name())):
		case f.IsMap(), f.Kind() == protoreflect.StringKind, f.Kind() == protoreflect.BytesKind:
			if is {
				do(at[1:], name[1:])
			}
		case f.Message() != nil:
			leaves(f.Message(), at, name, is, open, do)
		}
	}
}
