package kvevents

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/internal/protofield"
)

// confirmTime is how long an engine may take to repeat its last message. Then its stream cannot be resumed, and what
// was known is given up.
const confirmTime = 5 * time.Second

// Why a stream ends that the connection did not end.
var (
	errAgain = errors.New("kvevents: what comes next must be asked for")
	errEnded = errors.New("kvevents: the engine ended the stream")
)

// watcher follows SubscribeKvEvents of one replica. What is not applied yet is bounded by gRPC's flow control.
type watcher struct {
	*Stream
	*format
	seq *Sequence
}

func newWatcher(ctx context.Context, r *Replica, method string) *watcher {
	w := &watcher{Stream: r.NewStream(method, 0), format: &smgFormat}
	if strings.HasPrefix(method, "/openengine.") {
		w.format = &openFormat
	}
	w.seq = w.Sequence(ctx, nil, nil)
	w.seq.snapshots = w.open
	return w
}

// run follows until the context ends.
func (w *watcher) run(ctx context.Context) {
	for b := new(Backoff); ctx.Err() == nil; {
		err := w.session(ctx, b)
		if err == errAgain || ctx.Err() != nil {
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

// session opens the stream and takes what comes until it ends. errAgain means that it is to be opened at once.
func (w *watcher) session(ctx context.Context, b *Backoff) error {
	conn, err := w.Connect(ctx, w.Attrs.ID)
	if err != nil {
		return err
	}
	start, fresh := w.seq.open()
	opened, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s, err := conn.NewStream(opened, &grpc.StreamDesc{ServerStreams: true}, w.source, CallOptions()...)
	if err != nil {
		return err
	}
	request := w.request(start, fresh)
	if err := errors.Join(s.SendMsg(&request), s.CloseSend()); err != nil {
		return err
	}
	w.Failed(nil)
	confirm := time.AfterFunc(confirmTime, func() { cancel(errAgain) })
	defer confirm.Stop()
	for {
		if !w.seq.confirm {
			confirm.Stop()
		}
		var m []byte
		err := s.RecvMsg(&m)
		switch {
		case err != nil && context.Cause(opened) == errAgain:
			w.seq.unconfirmed()
			return errAgain
		case err == io.EOF:
			return errEnded
		case err != nil:
			return err
		}
		b.Reset()
		if err = w.take(ctx, m); err != nil {
			return err
		}
	}
}

// request asks for the stream from a number on. SMG's servers take it for the last one that is known, or for the first
// that is wanted: they are asked for one before, which is left out again. Their 0 is another question.
func (w *watcher) request(start uint64, fresh bool) (b []byte) {
	if w.open && fresh {
		b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), 1)
	}
	if !w.open && start > 1 {
		start--
	}
	if start > 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, w.start, protowire.VarintType), start)
	}
	return b
}

// take takes a message, OpenEngine's out of its envelope, where an error is the other thing that it can hold.
func (w *watcher) take(ctx context.Context, payload []byte) error {
	if w.open {
		var ended bool
		if payload, ended = openBatch(payload); ended {
			w.seq.unconfirmed()
			return errEnded
		}
	}
	if w.seq.accept(w.decode(ctx, payload)) {
		return errAgain
	}
	return nil
}

// openBatch returns the batch in OpenEngine's envelope, or that it is the error that ends the stream.
func openBatch(m []byte) (payload []byte, ended bool) {
	envelope, _ := protofield.Last(m)
	_, ended = envelope[2]
	return envelope[1].Bytes, ended
}

// CallOptions are those of RPCs to replicas whose messages stay encoded.
func CallOptions() []grpc.CallOption {
	return []grpc.CallOption{protofield.Raw(), grpc.MaxCallRecvMsgSize(MaxMessage), grpc.WaitForReady(true)}
}
