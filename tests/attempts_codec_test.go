package tests

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
)

// frames is the codec of a transparent proxy: the encoded message is the message's own memory, which gRPC frees.
type frames struct{}

type frame struct{ mem.BufferSlice }

func (frames) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case mem.BufferSlice:
		return v, nil
	case *frame:
		return v.BufferSlice, nil
	}
	return nil, errors.New("no frame")
}

func (frames) Unmarshal(b mem.BufferSlice, v any) error {
	*v.(*[]byte) = b.Materialize()
	return nil
}

func (frames) Name() string { return "proto" }

// startFrames serves every method: it answers what it got, or with an error. It counts the requests that are not
// those that their metadata announces.
func startFrames(t *testing.T, code codes.Code) (addr string, calls, foreign *atomic.Int64) {
	l := listenLoopback(t)
	calls, foreign = new(atomic.Int64), new(atomic.Int64)
	s := grpc.NewServer(grpc.ForceServerCodecV2(rawBytes{}), everyMethod(func(_ any, stream grpc.ServerStream) error {
		calls.Add(1)
		var b []byte
		if err := stream.RecvMsg(&b); err != nil {
			return err
		}
		id := metadata.ValueFromIncomingContext(stream.Context(), "id")[0]
		if !bytes.Equal(b, body(id)) {
			foreign.Add(1)
		}
		if code != codes.OK {
			return status.Error(code, "not now")
		}
		return stream.SendMsg([]byte(id))
	}))
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String(), calls, foreign
}

// body is long enough for a pooled buffer.
func body(id string) []byte { return bytes.Repeat([]byte(id), 2000) }

// Issue 12.28: every attempt sends a message that a codec passes through, and never the bytes of another call.
func TestPassedThroughMessagesAreRetried(t *testing.T) {
	bad, badCalls, badForeign := startFrames(t, codes.Unavailable)
	one, oneCalls, oneForeign := startFrames(t, codes.OK)
	two, twoCalls, twoForeign := startFrames(t, codes.OK)
	unbounded := client.WithConfig(config(`{"round_robin":{}}`, `"retry_ratio":"off"`))
	cc := dial(t, "warmpath:///"+bad+","+one+","+two, unbounded, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(frames{})))
	for addr, calls := range map[string]*atomic.Int64{bad: badCalls, one: oneCalls, two: twoCalls} {
		eventually(t, "connection to "+addr, func() bool {
			m := mem.BufferSlice{mem.SliceBuffer(body("connect"))}
			var got []byte
			ctx := metadata.AppendToOutgoingContext(client.WithPin(deadline(t), addr), "id", "connect")
			_ = cc.Invoke(ctx, "/p.S/Unary", m, &got, grpc.WaitForReady(true))
			return calls.Load() > 0
		})
	}
	badCalls.Store(0)
	for name, message := range map[string]func(mem.BufferSlice) any{
		"slice": func(b mem.BufferSlice) any { return b },
		"frame": func(b mem.BufferSlice) any { return &frame{b} },
	} {
		t.Run(name, func(t *testing.T) {
			var all sync.WaitGroup
			for g := range 8 {
				all.Go(func() {
					for i := range 20 {
						id := string(rune('A'+g)) + string(rune('a'+i))
						if got, err := passThrough(cc, i%2 == 0, id, message); err != nil || got != id {
							t.Errorf("%s: got %q, %v", id, got, err)
						}
					}
				})
			}
			all.Wait()
		})
	}
	require.Positive(t, badCalls.Load(), "some calls had another attempt")
	require.Zero(t, badForeign.Load()+oneForeign.Load()+twoForeign.Load(), "requests with other bytes than their call's")
}

func passThrough(cc *grpc.ClientConn, unary bool, id string, message func(mem.BufferSlice) any) (string, error) {
	ctx := metadata.AppendToOutgoingContext(context.Background(), "id", id)
	m := message(mem.BufferSlice{mem.Copy(body(id), mem.DefaultBufferPool())})
	var got []byte
	if unary {
		err := cc.Invoke(ctx, "/p.S/Unary", m, &got)
		return string(got), err
	}
	s, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/p.S/Stream")
	if err != nil {
		return "", err
	}
	if err := s.SendMsg(m); err != nil {
		return "", err
	}
	if err := s.RecvMsg(&got); err != nil {
		return "", err
	}
	var more []byte
	if err := s.RecvMsg(&more); err != io.EOF {
		return "", errors.New("no end")
	}
	return string(got), nil
}

var _ encoding.CodecV2 = frames{}
