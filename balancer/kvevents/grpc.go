package kvevents

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// confirmTime is how long an engine may take to say again what it said last. Then its stream cannot be resumed, and what
// was known is given up.
const confirmTime = 5 * time.Second

// watcher follows SubscribeKvEvents of one replica. What is not applied yet is bounded by gRPC's flow control.
type watcher struct {
	*stream
	connect connector
	method  string
}

// connector returns a connection to one replica, or waits for one.
type connector func(context.Context) (grpc.ClientConnInterface, error)

func (w *watcher) openEngine() bool { return openEngine(w.method) }

// openEngine reports whether a method's messages are OpenEngine's; those of all others are SMG's.
func openEngine(method string) bool { return strings.HasPrefix(method, "/openengine.") }

// decoder returns what reads a method's batches.
func decoder(method string) func(b *batch, payload []byte) {
	if openEngine(method) {
		return func(b *batch, payload []byte) { decodeOpenEngine(b, payload) }
	}
	return func(b *batch, payload []byte) { decodeSMG(b, payload) }
}

var errEnded = errors.New("kvevents: the engine ended the stream")

// run follows until the context ends.
func (w *watcher) run(ctx context.Context) {
	r := resumer{apply: w.applier(ctx), clear: w.lose, count: &followed{}, snapshots: w.openEngine()}
	var b backoff
	for ctx.Err() == nil {
		again, err := w.session(ctx, &r, &b)
		if again || ctx.Err() != nil {
			continue
		}
		w.failed(err)
		if r.resuming && refused(err) {
			r.unconfirmed() // it does not reach back so far
			w.counted(&r)
		}
		b.wait(ctx)
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
func (w *watcher) session(ctx context.Context, r *resumer, b *backoff) (again bool, err error) {
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
	w.failed(nil)
	messages, failed := make(chan []byte), make(chan error, 1)
	go func() { failed <- receive(ctx, s, messages) }()
	confirm := time.NewTimer(confirmTime)
	defer confirm.Stop()
	for {
		select {
		case m := <-messages:
			b.reset()
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
func (w *watcher) counted(r *resumer) {
	w.update(func(st *Status) {
		st.Gaps, st.Restarts, st.Clears = r.count.Gaps, r.count.Restarts, r.count.Clears
	})
}

// receive hands on what the stream says until it ends.
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
	if w.openEngine() {
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
	payload, number := m, protowire.Number(4)
	if w.openEngine() {
		var ended bool
		if payload, ended = openBatch(m); ended {
			r.unconfirmed()
			return false, errEnded
		}
		number = 3
	}
	var seq uint64
	var rank int
	var print xxh3.Hasher
	tells := false
	eachProto(payload, func(f field) {
		switch {
		case f.num == 1:
			seq = f.value
		case f.num == number:
			rank = int(int32(f.value))
		case w.openEngine(), f.num == 3, f.num == 6: // SMG's events; what else it says is another thing each time
			tells = true
			_, _ = print.Write(f.bytes)
		}
	})
	if !tells {
		return r.accept(seq, rank, m, 0), nil
	}
	return r.accept(seq, rank, m, print.Sum64()|1), nil
}

// openBatch returns the batch in OpenEngine's envelope, or that it is the error that ends the stream.
func openBatch(m []byte) (payload []byte, ended bool) {
	eachProto(m, func(f field) {
		switch f.num {
		case 1:
			payload = f.bytes
		case 2:
			ended = true
		}
	})
	return payload, ended
}
