package lookaside

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const (
	// maxAsked bounds the questions under way.
	maxAsked = 10_000
	// tripAfter is how many questions in a row go without an answer before the others are not asked, but for one every
	// probeAfter.
	tripAfter  = 5
	probeAfter = time.Second
	// batchFor is how long reports wait for others, or for a question to ride with.
	batchFor = 5 * time.Millisecond
	// renewEvery is how often the leases of reservations are checked.
	renewEvery = time.Second
)

type (
	chooseRequest = warmpathv1.ChooseReplicaRequest
	chooseAnswer  = warmpathv1.ChooseReplicasResponse
)

// A conversation is one stream of questions to one server.
type conversation struct {
	reserved *reserved
	wake     chan struct{}   // holds one: there is something in outbox
	ended    <-chan struct{} // the stream is over

	mu      sync.Mutex // guards the fields below; nothing is locked under it
	outbox  []*question
	waiting map[uint64]*question // by number: asked, and not answered yet
	last    uint64
	pace    pace
	late    int       // questions in a row without an answer in time
	probe   time.Time // when the next question is asked, once there are tripAfter of them
}

// A question waits for its answer.
type question struct {
	number uint64
	choose *chooseRequest
	at     time.Time
	answer chan *chooseAnswer // holds one

	left bool // its call does not wait any more; guarded by the conversation's mu
}

func newConversation(l *reserved, ended <-chan struct{}) *conversation {
	return &conversation{
		reserved: l, wake: make(chan struct{}, 1), ended: ended, waiting: make(map[uint64]*question),
	}
}

// ask asks one question and waits for the answer. A server's failure is a status.
func (c *conversation) ask(
	ctx context.Context, r *chooseRequest, longest time.Duration,
) (*warmpathv1.ChooseReplicaResponse, error) {
	if !c.asks() {
		return nil, ErrLate
	}
	m, err := c.wait(ctx, r, longest)
	c.asked(err)
	if err != nil {
		return nil, err
	}
	if f := m.GetFailure(); f != nil {
		return nil, status.Error(codes.Code(f.GetCode()), f.GetMessage())
	}
	return m.GetChosen(), nil
}

// asks reports whether the server is asked: always, or one question each probeAfter where the last ones went unanswered.
func (c *conversation) asks() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.late < tripAfter {
		return true
	}
	now := time.Now()
	if now.Before(c.probe) {
		return false
	}
	c.probe = now.Add(probeAfter)
	return true
}

// asked notes how a question ended. The end of its call or of the stream counts neither way.
func (c *conversation) asked(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.late = 0
	case errors.Is(err, ErrLate):
		c.late++
		c.probe = time.Now().Add(probeAfter)
	}
}

func (c *conversation) wait(ctx context.Context, r *chooseRequest, longest time.Duration) (*chooseAnswer, error) {
	q, limit, err := c.put(r, longest)
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(limit + time.Duration(r.GetWaitMs())*time.Millisecond)
	defer timer.Stop()
	select {
	case m := <-q.answer:
		return m, nil
	case <-timer.C:
		err = ErrLate
	case <-ctx.Done():
		err = ctx.Err()
	case <-c.ended:
		err = ErrNoServer
	}
	if c.leave(q, err) {
		return nil, err
	}
	m := <-q.answer // it came in the same moment
	if ctx.Err() != nil {
		c.reserved.drop(m.GetChosen().GetReservation())
		return nil, ctx.Err()
	}
	return m, nil
}

// put has a question sent, and returns how long to wait for the answer.
func (c *conversation) put(r *chooseRequest, longest time.Duration) (*question, time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) >= maxAsked {
		return nil, 0, ErrLate
	}
	c.last++
	q := &question{number: c.last, choose: r, at: time.Now(), answer: make(chan *chooseAnswer, 1)}
	c.waiting[q.number] = q
	c.outbox = append(c.outbox, q)
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return q, c.pace.limit(longest), nil
}

// leave ends the wait for an answer. It returns false if the answer has come.
func (c *conversation) leave(q *question, cause error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting[q.number] != q {
		return false
	}
	q.left = true
	if cause == ErrLate {
		c.pace.late++
	}
	return true
}

// answered takes an answer. One that no call waits for is given back.
func (c *conversation) answered(m *chooseAnswer) {
	c.mu.Lock()
	q := c.waiting[m.GetNumber()]
	delete(c.waiting, m.GetNumber())
	waited := q != nil && q.choose.GetWaitMs() > 0
	if q != nil && !waited { // the time of a wait for room is not the server's pace
		c.pace.took(time.Since(q.at))
		if !q.left {
			c.pace.late = 0
		}
	}
	left := q == nil || q.left
	c.mu.Unlock()
	if left {
		c.reserved.drop(m.GetChosen().GetReservation())
		return
	}
	q.answer <- m
}

// unsent returns the questions to send, without those that no call waits for.
func (c *conversation) unsent() []*question {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.outbox[:0:0]
	for _, q := range c.outbox {
		if q.left {
			delete(c.waiting, q.number)
			continue
		}
		all = append(all, q)
	}
	c.outbox = nil
	return all
}

// send sends questions and reports until the stream breaks.
func (c *conversation) send(ctx context.Context, stream warmpathv1.RoutingService_ChooseReplicasClient) error {
	renew := time.NewTicker(renewEvery)
	defer renew.Stop()
	flush := time.NewTimer(0) // what is left of the stream before
	defer flush.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.wake:
			for _, q := range c.unsent() {
				m := &warmpathv1.ChooseReplicasRequest{Number: q.number, Choose: q.choose, Lives: c.reserved.take()}
				if err := stream.Send(m); err != nil {
					return err
				}
			}
		case <-c.reserved.wake:
			flush.Reset(batchFor)
		case <-flush.C:
			if lives := c.reserved.take(); len(lives) > 0 {
				if err := stream.Send(&warmpathv1.ChooseReplicasRequest{Lives: lives}); err != nil {
					return err
				}
			}
		case now := <-renew.C:
			c.reserved.renew(now)
		}
	}
}

// pace is how fast a server answers, and so how long the wait for an answer may be: the mean and four deviations, as
// TCP waits for an acknowledgement (RFC 6298), twice as long after each answer that did not come in time. Its owner
// guards it.
type pace struct {
	mean, deviation time.Duration
	known           bool
	late            int // answers in a row
}

// took enters how long an answer took.
func (p *pace) took(d time.Duration) {
	if !p.known {
		p.mean, p.deviation, p.known = d, d/2, true
		return
	}
	off := d - p.mean
	p.mean += off / 8
	p.deviation += (max(off, -off) - p.deviation) / 4
}

// patience bounds how much earlier than the deadline an answer is given up.
const patience = 2

// limit is how long to wait for the next answer, at most so long.
func (p *pace) limit(longest time.Duration) time.Duration {
	if !p.known {
		return longest
	}
	d := max(p.mean+4*p.deviation, longest/patience)
	return min(d<<min(p.late, 2*patience), longest)
}
