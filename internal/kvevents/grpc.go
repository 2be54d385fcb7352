package kvevents

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/internal/protofield"
)

// confirmTime is how long an engine may take to repeat its last message. Then its stream cannot be resumed, and what
// was known is given up.
const confirmTime = 5 * time.Second

var errUnconfirmed = errors.New("kvevents: the engine does not repeat its last message")

// watcher follows SubscribeKvEvents of one replica. What is not applied yet is bounded by gRPC's flow control.
type watcher struct {
	*Stream
	seq    *Sequence
	method string
	open   bool // its messages are OpenEngine's; those of all others are SMG's
}

func newWatcher(ctx context.Context, r *replica, method string) *watcher {
	w := &watcher{method: method, open: strings.HasPrefix(method, "/openengine.")}
	decode := decodeSMG
	if w.open {
		decode = decodeOpen
	}
	w.Stream = r.stream(method, 0, decode)
	w.seq = w.Sequence(ctx, nil)
	w.seq.snapshots = w.open
	return w
}

var errEnded = errors.New("kvevents: the engine ended the stream")

// run follows until the context ends.
func (w *watcher) run(ctx context.Context) {
	var b Backoff
	for ctx.Err() == nil {
		again, err := w.session(ctx, &b)
		if again || ctx.Err() != nil {
			continue
		}
		w.Failed(err)
		switch status.Code(err) {
		case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded: // the connection's end
		default:
			w.seq.unconfirmed() // the engine's: it does not reach back so far
		}
		b.Wait(ctx)
	}
}

// session opens the stream and takes what comes; again is true if it is to be opened once more, at once.
func (w *watcher) session(ctx context.Context, b *Backoff) (again bool, err error) {
	conn, err := w.Connect(ctx, w.attrs.ID)
	if err != nil {
		return false, err
	}
	start, fresh := w.seq.open()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, w.method, callOptions()...)
	if err != nil {
		return false, err
	}
	request := w.request(start, fresh)
	if err := errors.Join(s.SendMsg(&request), s.CloseSend()); err != nil {
		return false, err
	}
	w.Failed(nil)
	confirm := time.AfterFunc(confirmTime, func() { cancel(errUnconfirmed) })
	defer confirm.Stop()
	for {
		if !w.seq.confirm {
			confirm.Stop()
		}
		var m []byte
		err := s.RecvMsg(&m)
		switch {
		case err != nil && context.Cause(ctx) == errUnconfirmed:
			w.seq.unconfirmed()
			return true, nil
		case err == io.EOF:
			return false, errEnded
		case err != nil:
			return false, err
		}
		b.Reset()
		if again, err = w.take(m); again || err != nil {
			return again, err
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

func (w *watcher) take(payload []byte) (again bool, err error) {
	rank, events := protowire.Number(4), []protowire.Number{3, 6}
	if w.open {
		rank, events = 3, []protowire.Number{4}
		var ended bool
		if payload, ended = openBatch(payload); ended {
			w.seq.unconfirmed()
			return false, errEnded
		}
	}
	m := message{payload: payload}
	var content xxh3.Hasher                                 // of the events: what else is in a batch differs each time
	_ = protofield.Each(payload, func(f protofield.Field) { // what cannot be read is counted when it is applied
		switch {
		case f.Number == 1:
			m.seq = f.Value
		case f.Number == rank:
			m.rank = int(int32(f.Value))
		case slices.Contains(events, f.Number):
			_, _ = content.Write(f.Bytes)
			m.print = 1
		}
	})
	if m.print != 0 {
		m.print = content.Sum64() | 1
	}
	return w.seq.accept(m), nil
}

// openBatch returns the batch in OpenEngine's envelope, or that it is the error that ends the stream.
func openBatch(m []byte) (payload []byte, ended bool) {
	_ = protofield.Each(m, func(f protofield.Field) {
		switch f.Number {
		case 1:
			payload = f.Bytes
		case 2:
			ended = true
		}
	})
	return payload, ended
}

func callOptions() []grpc.CallOption {
	return []grpc.CallOption{protofield.Raw(), grpc.MaxCallRecvMsgSize(MaxMessage), grpc.WaitForReady(true)}
}
