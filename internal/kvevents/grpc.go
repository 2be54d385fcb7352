package kvevents

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// confirmTime is how long an engine may take to repeat its last message. Then its stream cannot be resumed, and what
// was known is given up.
const confirmTime = 5 * time.Second

// watcher follows SubscribeKvEvents of one replica. What is not applied yet is bounded by gRPC's flow control.
type watcher struct {
	*Stream
	connect connector
	method  string
	open    bool // its messages are OpenEngine's; those of all others are SMG's
}

// connector returns a connection to one replica, or waits for one.
type connector func(context.Context) (grpc.ClientConnInterface, error)

func newWatcher(r *replica, connect connector, method string) *watcher {
	w := &watcher{connect: connect, method: method, open: strings.HasPrefix(method, "/openengine.")}
	format := &smg
	if w.open {
		format = &openEngine
	}
	w.Stream = r.stream(method, 0, func(b *Batch, payload []byte) { format.decode(b, payload) })
	return w
}

var errEnded = errors.New("kvevents: the engine ended the stream")

// run follows until the context ends.
func (w *watcher) run(ctx context.Context) {
	r := resumer{apply: w.Applier(ctx), clear: w.Lose, count: &Followed{}, snapshots: w.open}
	var b Backoff
	for ctx.Err() == nil {
		again, err := w.session(ctx, &r, &b)
		if again || ctx.Err() != nil {
			continue
		}
		w.Failed(err)
		if r.resuming && refused(err) {
			r.unconfirmed() // it does not reach back so far
			w.counted(&r)
		}
		b.Wait(ctx)
	}
}

// refused reports whether the engine itself ended the stream, rather than the connection.
func refused(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded:
		return false
	}
	return true
}

// session opens the stream and takes what comes; again is true if it is to be opened once more, at once.
func (w *watcher) session(ctx context.Context, r *resumer, b *Backoff) (again bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := w.connect(ctx)
	if err != nil {
		return false, err
	}
	start, fresh := r.open()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, w.method, callOptions()...)
	if err != nil {
		return false, err
	}
	request := w.request(start, fresh)
	if err := errors.Join(s.SendMsg(&request), s.CloseSend()); err != nil {
		return false, err
	}
	w.Failed(nil)
	messages, failed := make(chan []byte), make(chan error, 1)
	go func() { failed <- receive(ctx, s, messages) }()
	confirm := time.NewTimer(confirmTime)
	defer confirm.Stop()
	for {
		select {
		case m := <-messages:
			b.Reset()
			if again, err = w.take(r, m); again || err != nil {
				w.counted(r)
				cancel()
				<-failed
				return again, err
			}
		case err := <-failed:
			return false, err
		case <-confirm.C:
			r.unconfirmed()
		}
		w.counted(r)
	}
}

// counted shows the counts in the status.
func (w *watcher) counted(r *resumer) { w.Update(func(st *Status) { st.Count(r.count) }) }

// receive hands on the stream's messages until it ends.
func receive(ctx context.Context, s grpc.ClientStream, to chan<- []byte) error {
	for {
		var m []byte
		if err := s.RecvMsg(&m); err != nil {
			if err == io.EOF {
				return errEnded
			}
			return err
		}
		select {
		case to <- m:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// request asks for the stream from a number on. SMG's servers take it for the last one that is known, or for the first
// that is wanted: they are asked for one before, which is left out again. Their 0 is another question.
func (w *watcher) request(start uint64, fresh bool) (b []byte) {
	number := protowire.Number(1)
	if w.open {
		number = 3
		if fresh {
			b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), 1)
		}
	} else if start > 1 {
		start--
	}
	if start > 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), start)
	}
	return b
}

func (w *watcher) take(r *resumer, m []byte) (again bool, err error) {
	rankField := protowire.Number(4)
	if w.open {
		rankField = 3
		var ended bool
		if m, ended = openBatch(m); ended {
			r.unconfirmed()
			return false, errEnded
		}
	}
	var seq, print uint64
	var rank int
	var events xxh3.Hasher
	_ = eachField(m, func(f field) error { // what cannot be read is counted when it is applied
		switch {
		case f.num == 1:
			seq = f.value
		case f.num == rankField:
			rank = int(int32(f.value))
		case w.open, f.num == 3, f.num == 6: // SMG's events; what else is in its batch differs each time
			_, _ = events.Write(f.bytes)
			print = 1
		}
		return nil
	})
	if print != 0 {
		print = events.Sum64() | 1
	}
	return r.accept(seq, rank, m, print), nil
}

// openBatch returns the batch in OpenEngine's envelope, or that it is the error that ends the stream.
func openBatch(m []byte) (payload []byte, ended bool) {
	_ = eachField(m, func(f field) error {
		switch f.num {
		case 1:
			payload = f.bytes
		case 2:
			ended = true
		}
		return nil
	})
	return payload, ended
}

// rawCodec passes encoded messages through: engines' fields are read by number, so that no proto name of theirs is
// registered in the application.
type rawCodec struct{}

// Marshal implements encoding.CodecV2.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("kvevents: cannot send a %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("kvevents: cannot receive a %T", v)
	}
	*b = data.Materialize()
	return nil
}

// Name implements encoding.CodecV2.
func (rawCodec) Name() string { return "proto" }

func callOptions() []grpc.CallOption {
	return []grpc.CallOption{grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(MaxMessage), grpc.WaitForReady(true)}
}
