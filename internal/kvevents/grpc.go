package kvevents

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/protofield"
)

// Why a subscription ends that the connection did not end.
var (
	errGap   = errors.New("kvevents: the stream left out events of a rank")
	errEnded = errors.New("kvevents: the engine ended the stream")
)

// watcher follows SubscribeKvEvents of one replica. What is not applied yet is bounded by gRPC's flow control.
//
// SMG's servers keep nothing for a subscriber: every subscription begins with number 0, and brings live events, all
// events since the engine began, or a snapshot. Each data-parallel rank has its own sequence numbers. If the first
// batch of a rank does not follow the batch before it, what was known of the rank is cleared and built anew. A gap
// within a subscription clears the rank and subscribes again.
//
// OpenEngine's servers begin each subscription with a snapshot of all ranks, in batches of one number.
type watcher struct {
	*Stream
	*format
	cursors map[int]*cursor // by rank; at most MaxRanks

	// Of OpenEngine, whose ranks may share their numbers.
	next     uint64 // the number behind the last batch of any rank
	snapshot bool   // nothing but the snapshot came yet
}

// cursor is the place of one rank in its events.
type cursor struct {
	next uint64 // the number behind the last batch
	came bool   // the subscription has brought a batch
}

func newWatcher(r *Replica, method string) *watcher {
	w := &watcher{Stream: r.NewStream(method, 0), format: &smgFormat, cursors: map[int]*cursor{}}
	if strings.HasPrefix(method, "/openengine.") {
		w.format = &openFormat
	}
	return w
}

// run follows until the context ends.
func (w *watcher) run(ctx context.Context) {
	for b := new(Backoff); ctx.Err() == nil; b.Wait(ctx) {
		err := w.subscription(ctx, b)
		if ctx.Err() != nil || err == errGap {
			continue
		}
		w.Failed(err)
		switch status.Code(err) {
		case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded: // the connection's end
		default:
			if err != errEnded && len(w.cursors) > 0 {
				w.lost()
			}
		}
	}
}

// subscription opens the stream and takes what comes until it ends.
func (w *watcher) subscription(ctx context.Context, b *Backoff) error {
	conn, err := w.Connect(ctx, w.Attrs.ID)
	if err != nil {
		return err
	}
	opened, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := conn.NewStream(opened, &grpc.StreamDesc{ServerStreams: true}, w.source, CallOptions()...)
	if err != nil {
		return err
	}
	if err := errors.Join(s.SendMsg(&w.request), s.CloseSend()); err != nil {
		return err
	}
	w.Failed(nil)
	w.subscribed()
	for first := true; ; first = false {
		var payload []byte
		switch err := s.RecvMsg(&payload); {
		case err == io.EOF:
			return errEnded
		case err != nil:
			return err
		}
		b.Reset()
		if w.open {
			var ended bool
			if payload, ended = openBatch(payload); ended {
				return errEnded
			}
			if first { // of a snapshot
				w.forget()
				w.snapshot = true
			}
		}
		if err := w.take(ctx, payload); err != nil {
			return err
		}
	}
}

// subscribed is called when a subscription begins.
func (w *watcher) subscribed() {
	for _, c := range w.cursors {
		c.came = false
	}
}

// take applies a batch. errGap means that the stream must be opened again.
func (w *watcher) take(ctx context.Context, payload []byte) error {
	m := w.decode(ctx, payload)
	if m.loadOnly {
		return nil
	}
	if rank := m.Rank; rank < MaxRanks {
		c := w.cursors[rank]
		switch {
		case c == nil:
			c = new(cursor)
			w.cursors[rank] = c
		case m.resync:
			w.clear(rank)
		case !m.any && c.next == m.seq+1: // it shows only that the engine is alive
			return nil
		case m.seq == c.next, w.open && (m.seq == w.next || w.snapshot && m.seq+1 == w.next):
		case c.came:
			w.Update(func(st *Status) { st.Gaps++ })
			w.lost(rank)
			return errGap
		case m.seq < c.next: // the engine was restarted, or its events come from the beginning
			w.Update(func(st *Status) { st.Restarts++ })
			fallthrough
		default:
			w.lost(rank)
			w.cursors[rank] = c
		}
		w.snapshot = w.snapshot && (w.next == 0 || m.seq+1 == w.next)
		c.next, c.came, w.next = m.seq+1, true, m.seq+1
	}
	w.apply(ctx, m.seq, &m.Batch)
	if m.unseen > 0 {
		w.Update(func(st *Status) {
			st.Problem = fmt.Sprintf("its snapshot lacks what was stored in %d batches: the cache is known in part", m.unseen)
		})
	}
	return nil
}

// lost forgets ranks, all without any, because events were lost.
func (w *watcher) lost(ranks ...int) {
	w.Update(func(st *Status) { st.Clears++ })
	w.lose(ranks...)
	for _, rank := range ranks {
		delete(w.cursors, rank)
	}
	if len(ranks) == 0 {
		clear(w.cursors)
	}
}

// forget forgets all ranks because all that they hold comes again.
func (w *watcher) forget() {
	w.clear()
	clear(w.cursors)
	w.next = 0
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
