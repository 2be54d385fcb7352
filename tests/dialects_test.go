package tests

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/fleet"
	"github.com/warmpath/warmpath/internal/telemetry"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
)

// anyServer serves every method: it answers an encoded message with the one that answer returns.
func anyServer(t testing.TB, answer func(method string, request []byte, md metadata.MD) []byte) (addr string) {
	t.Helper()
	l := listenLoopback(t)
	s := grpc.NewServer(grpc.ForceServerCodecV2(rawBytes{}), everyMethod(func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		md, _ := metadata.FromIncomingContext(stream.Context())
		var b []byte
		if err := stream.RecvMsg(&b); err != nil {
			return err
		}
		return stream.SendMsg(answer(method, b, md))
	}))
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

// text is an encoded field of bytes.
func text(num protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), s)
}

// Issue 12.43: a VllmEngine stream carries deltas, and its last message repeats the last delta. A unary answer has
// the total.
func TestVllmEngineOutputTokens(t *testing.T) {
	s := startEngine(t, grpcserver.Config{Virtual: true})
	cc := dial(t, "warmpath:///"+s.Addr().String(), client.WithConfig(`{}`))
	for _, streams := range []bool{true, false} {
		q := generation(fmt.Sprint(streams))
		q.Stream = streams
		*q.SamplingParams.MaxTokens = 7
		var d client.Decision
		stream, err := enginepb.NewVllmEngineClient(cc).Generate(client.WithDecision(deadline(t), &d), q)
		require.NoError(t, err)
		for err == nil {
			_, err = stream.Recv()
		}
		require.NoError(t, ignoreEOF(err))
		require.Equal(t, 7, d.Usage.OutputTokens, "stream: %v", streams)
	}
}

// Issue 12.46: sglang.runtime.v1 has a session field, which takes precedence over routing_key. An older branch has a
// message in its place, which is no session.
func TestSGLangRuntimeSession(t *testing.T) {
	addrs := make([]string, 4)
	for i := range addrs {
		addrs[i] = anyServer(t, func(string, []byte, metadata.MD) []byte { return nil })
	}
	cc := dial(t, "warmpath:///"+addrs[0]+","+addrs[1]+","+addrs[2]+","+addrs[3],
		client.WithConfig(`{"policy":{"consistent_hash":{}}}`))
	for _, a := range addrs {
		eventually(t, "all are connected", func() bool {
			var reply []byte
			return cc.Invoke(client.WithPin(deadline(t), a), "/a.B/C", []byte{}, &reply, grpc.ForceCodecV2(rawBytes{})) == nil
		})
	}
	where := func(session, method string, message []byte) string {
		var d client.Decision
		ctx := client.WithDecision(deadline(t), &d)
		if session != "" {
			ctx = client.WithSession(ctx, session)
		}
		var reply []byte
		require.NoError(t, cc.Invoke(ctx, "/sglang.runtime.v1.SglangService/"+method, message, &reply,
			grpc.ForceCodecV2(rawBytes{}), grpc.WaitForReady(true)))
		return d.Replica
	}
	for _, m := range []struct {
		method           string
		routing, session protowire.Number
	}{
		{method: "TextGenerate", routing: 10, session: 13},
		{method: "Generate", routing: 9, session: 12},
	} {
		for i := range 12 {
			session := fmt.Sprint("conversation ", i)
			message := append(text(m.session, session), text(m.routing, "one value for all")...)
			require.Equal(t, where(session, "Other", nil), where("", m.method, message), session)

			parameters := string(text(1, "prefill-host"))
			message = append(text(m.session, parameters), text(m.routing, session)...)
			require.Equal(t, where(session, "Other", nil), where("", m.method, message), session)
		}
	}
}

// ranked dials replicas of several data-parallel ranks. The policy chooses one of them.
func ranked(t *testing.T, name string, rank int, addrs ...string) *grpc.ClientConn {
	t.Helper()
	_, config := listening(name, rank)
	res := manual.NewBuilderWithScheme("ranked")
	var all []resolver.Endpoint
	for _, a := range addrs {
		all = append(all, fleet.Endpoint(policy.Attributes{ID: a, Address: a, Ranks: 4}))
	}
	res.InitialState(resolver.State{Endpoints: all})
	return dial(t, "ranked:///", grpc.WithResolvers(res), client.WithConfig(
		`{"policy":`+config+`,"dialects":[{"methods":["/acme.v1.Engine/Generate"],"rank":"4"}]}`))
}

// A call that begins before the channel has a balancer also has its rank in the message, if the config names the
// dialect.
func TestRankOfTheFirstCall(t *testing.T) {
	a := anyServer(t, func(_ string, request []byte, md metadata.MD) []byte { return text(1, rankIn(4, request, md)) })
	var reply []byte
	require.NoError(t, ranked(t, "rank_first", 2, a).Invoke(deadline(t), "/acme.v1.Engine/Generate", text(1, "r"), &reply,
		grpc.ForceCodecV2(rawBytes{}), grpc.WaitForReady(true)))
	require.Equal(t, string(text(1, "[2] [2]")), string(reply))
}

// rankIn returns the values of an integer field in an encoded message, and those of the metadata.
func rankIn(num protowire.Number, message []byte, md metadata.MD) string {
	var read []uint64
	for len(message) > 0 {
		n, typ, size := protowire.ConsumeField(message)
		if size < 0 {
			return "broken"
		}
		if n == num && typ == protowire.VarintType {
			_, _, tag := protowire.ConsumeTag(message)
			v, _ := protowire.ConsumeVarint(message[tag:])
			read = append(read, v)
		}
		message = message[size:]
	}
	return fmt.Sprint(read, md.Get("x-data-parallel-rank"))
}

// Issue 12.6: the rank that the policy chose is in the message where the engine reads it, and in the metadata too.
func TestRankReachesEveryEngine(t *testing.T) {
	fields := map[string]protowire.Number{
		"/vllm.grpc.engine.VllmEngine/Generate":           9,
		"/sglang.grpc.scheduler.SglangScheduler/Generate": 16,
		"/sglang.grpc.scheduler.SglangScheduler/Embed":    8,
		"/sglang.runtime.v1.SglangService/TextGenerate":   11,
		"/sglang.runtime.v1.SglangService/Generate":       10,
		"/sglang.api.v1.SglangService/Generate":           17,
	}
	a := anyServer(t, func(method string, request []byte, md metadata.MD) []byte {
		return text(1, rankIn(fields[method], request, md))
	})
	for _, rank := range []int{2, 0} {
		cc := ranked(t, fmt.Sprint("rank_", rank), rank, a)
		for method := range fields {
			for _, message := range [][]byte{{}, text(1, "r")} { // the first one meets no connection yet
				var reply []byte
				require.NoError(t, cc.Invoke(deadline(t), method, message, &reply, grpc.ForceCodecV2(rawBytes{}), grpc.WaitForReady(true)))
				require.Equal(t, string(text(1, fmt.Sprintf("[%d] [%d]", rank, rank))), string(reply), method)
			}
		}
		own := protowire.AppendVarint(protowire.AppendTag(text(1, "r"), 9, protowire.VarintType), 3)
		var reply []byte
		require.NoError(t, cc.Invoke(deadline(t), "/vllm.grpc.engine.VllmEngine/Generate", own, &reply, grpc.ForceCodecV2(rawBytes{})))
		require.Equal(t, string(text(1, "[3] []")), string(reply), "the application's choice stays")
		ctx := metadata.AppendToOutgoingContext(deadline(t), "x-data-parallel-rank", "1")
		require.NoError(t, cc.Invoke(ctx, "/vllm.grpc.engine.VllmEngine/Generate", text(1, "r"), &reply, grpc.ForceCodecV2(rawBytes{})))
		require.Equal(t, string(text(1, "[] [1]")), string(reply), "the application's choice stays")
	}
}

// Issue 12.6: the same with generated messages, in an attempt after a failed one too. The application's message does
// not change.
func TestRankOfAGeneratedMessage(t *testing.T) {
	dead := listenLoopback(t)
	s := grpc.NewServer(everyMethod(func(any, grpc.ServerStream) error { return status.Error(codes.Unavailable, "restarting") }))
	go func() { _ = s.Serve(dead) }()
	t.Cleanup(s.Stop)
	alive := anyServer(t, func(_ string, request []byte, md metadata.MD) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), text(2, rankIn(9, request, md)))
	})
	cc := ranked(t, "rank_generated", 3, dead.Addr().String(), alive)
	eventually(t, "both are connected", func() bool {
		var reply []byte
		return cc.Invoke(client.WithPin(deadline(t), alive), "/a.B/C", []byte{}, &reply, grpc.ForceCodecV2(rawBytes{})) == nil
	})
	for range 4 {
		q := generation("r")
		stream, err := enginepb.NewVllmEngineClient(cc).Generate(deadline(t), q, grpc.WaitForReady(true))
		require.NoError(t, err)
		m, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, "[3] [3]", m.GetComplete().GetFinishReason())
		require.Nil(t, q.DataParallelRank)
	}
}

// Issue 12.5: a call whose conversation turns cannot be read has no key. It is counted, and logged once.
func TestUnreadableContentIsNoKey(t *testing.T) {
	a := anyServer(t, func(string, []byte, metadata.MD) []byte { return nil })
	var l logged
	m := newMeter(t)
	// The dialect declares the content in field 3 of a list, and the parts have no such field.
	cc := dial(t, "warmpath:///"+a, client.WithLogger(l.logger()), m.option, client.WithConfig(
		`{"dialects":[{"methods":["/acme.Chat/Answer"],"messages":{"path":"1","role":"1","content":"2[].3"}}]}`))
	const calls = 3
	for i := range calls {
		turn := append(text(1, "user"), text(2, string(text(1, fmt.Sprint("a part of another kind, ", i))))...)
		var d client.Decision
		var reply []byte
		require.NoError(t, cc.Invoke(client.WithDecision(deadline(t), &d), "/acme.Chat/Answer", text(1, string(turn)), &reply,
			grpc.ForceCodecV2(rawBytes{}), grpc.WaitForReady(true)))
		require.Equal(t, policy.ReasonNoKey, d.Reason)
		require.Zero(t, d.PromptTokens)
	}
	require.EqualValues(t, calls, m.sum(t, "warmpath.decisions", telemetry.KeyReason.String(string(policy.ReasonNoKey))))
	require.Equal(t, 1, strings.Count(l.String(), "messages.content"), l.String())
}

// Issue 12.7: two images behind the same token ids are two prompts.
func TestImagesAreDifferentPrompts(t *testing.T) {
	a := anyServer(t, func(string, []byte, metadata.MD) []byte { return nil })
	cc := dial(t, "warmpath:///"+a)
	ids := make([]byte, 256) // 256 tokens
	matched := func(media ...byte) int {
		var d client.Decision
		var reply []byte
		message := append(text(4, string(text(1, string(ids)))), media...)
		require.NoError(t, cc.Invoke(client.WithDecision(deadline(t), &d), "/vllm.Inference/Generate", message, &reply,
			grpc.ForceCodecV2(rawBytes{}), grpc.WaitForReady(true)))
		require.Equal(t, 256, d.PromptTokens)
		return d.MatchedTokens
	}
	image := func(uuid string) []byte { return text(14, string(text(6, uuid))) }
	require.Zero(t, matched())
	require.Zero(t, matched(image("a")...))
	require.Zero(t, matched(image("b")...))
	require.Equal(t, 256, matched(image("a")...))
	require.Equal(t, 256, matched(image("b")...))
	require.Equal(t, 256, matched())
}
