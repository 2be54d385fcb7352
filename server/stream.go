package server

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// maxWaiting bounds the requests of one stream that wait for room.
const maxWaiting = 1000

type chooseStream = grpc.BidiStreamingServer[warmpathv1.ChooseReplicasRequest, warmpathv1.ChooseReplicasResponse]

// ChooseReplicas implements the service. A request that need not wait is answered before the next one is read: a
// client that does not read answers is stopped by flow control.
func (s services) ChooseReplicas(stream chooseStream) error {
	ctx, cancel := context.WithCancel(stream.Context())
	a := answers{stream: stream}
	a.waiting.SetLimit(maxWaiting)
	read := make(chan error, 1)
	go func() { // ends with the stream, so after this method at the latest
		read <- shielded(s.log, "ChooseReplicas", func() error { return s.answerAll(ctx, &a) })
	}()
	err := s.until(ctx, s.principalOf(ctx), read)
	if err == nil {
		_ = a.waiting.Wait() // the client has sent its last request
	}
	cancel()
	return cmp.Or(err, a.end())
}

// answerAll answers until the client ends its half of the stream.
func (s services) answerAll(ctx context.Context, a *answers) error {
	p := s.principalOf(ctx)
	for {
		r, err := a.stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(r.GetLives()) > maxLives {
			return invalid("lives: more than %d", maxLives)
		}
		for _, life := range r.GetLives() {
			s.lived(p, life)
		}
		if r.GetChoose() == nil {
			if err := p.pace(ctx); err != nil {
				return err
			}
			continue
		}
		if err := p.allow(); err != nil {
			a.send(r.GetNumber(), failure(status.Convert(err)))
			continue
		}
		answer := func() error {
			a.send(r.GetNumber(), s.answered(ctx, r.GetChoose()))
			return nil
		}
		if r.GetChoose().GetWaitMs() == 0 {
			_ = answer()
		} else if !a.waiting.TryGo(answer) {
			a.send(r.GetNumber(), failure(status.Newf(codes.ResourceExhausted,
				"%d requests of this stream wait already", maxWaiting)))
		}
	}
}

// answered is the answer to one request, or its failure.
func (s services) answered(
	ctx context.Context, r *warmpathv1.ChooseReplicaRequest,
) *warmpathv1.ChooseReplicasResponse {
	var a *warmpathv1.ChooseReplicaResponse
	err := shielded(s.log, "ChooseReplicas", func() (err error) {
		a, err = s.ChooseReplica(ctx, r)
		return err
	})
	if err != nil {
		return failure(status.Convert(err))
	}
	return &warmpathv1.ChooseReplicasResponse{Result: &warmpathv1.ChooseReplicasResponse_Chosen{Chosen: a}}
}

func failure(st *status.Status) *warmpathv1.ChooseReplicasResponse {
	return &warmpathv1.ChooseReplicasResponse{Result: &warmpathv1.ChooseReplicasResponse_Failure{
		Failure: &warmpathv1.Failure{Code: int32(st.Code()), Message: st.Message()},
	}}
}

// answers sends on one stream, for several goroutines.
type answers struct {
	waiting errgroup.Group // requests that wait for room

	// mu guards what follows. It is held in Send: a stream takes one message at a time, and none after its handler
	// returned.
	mu     sync.Mutex
	stream chooseStream
	err    error // the first of sending
	ended  bool
}

func (a *answers) send(number uint64, m *warmpathv1.ChooseReplicasResponse) {
	m.Number = number
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil && !a.ended {
		a.err = a.stream.Send(m)
	}
}

func (a *answers) end() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	return a.err
}
