package chaos

import (
	"context"
	"errors"
	"io"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
	vllmpb "github.com/warmpath/warmpath/internal/lab/enginesim/enginepb/vllm"
	"github.com/warmpath/warmpath/internal/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/internal/lab/workload"
)

// An Outcome is what became of a call.
type Outcome string

// The outcomes.
const (
	// Served: the whole answer came.
	Served Outcome = "served"
	// Cut: it failed after a part of the answer had come, which no retry may repeat.
	Cut Outcome = "cut"
	// SentTwice: it failed before anything had come, in an attempt that was not its first.
	SentTwice Outcome = "sent_twice"
	// TimedOut: its deadline came first.
	TimedOut Outcome = "timed_out"
	// Refused: there was no room, and the refusal gave the reason.
	Refused Outcome = "refused"
	// Lost: it failed although it could have been served.
	Lost Outcome = "lost"
)

// Call is one call as it was seen. Times are since the load began.
type Call struct {
	Index, Session, Client int
	Unary, Long            bool
	Start, First, End      time.Duration // First is 0 where nothing came
	Replica                string        // of the last attempt; "" if there was none
	Attempts               int
	Received               int // messages
	Prompt, Cached         int // tokens, of those that were served
	Outcome                Outcome
	Err                    error
}

// outcomeOf judges a call that has ended.
func outcomeOf(c *Call) Outcome {
	switch code := status.Code(c.Err); {
	case c.Err == nil:
		return Served
	case code == codes.DeadlineExceeded:
		return TimedOut
	case c.Received > 0:
		return Cut
	case code == codes.ResourceExhausted:
		return Refused
	case c.Attempts > 1:
		return SentTwice
	}
	return Lost
}

// send sends the call and reads its answer to the end.
func (l *load) send(ctx context.Context, cc *grpc.ClientConn, c *Call) {
	var d client.Decision
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	ctx = client.WithDecision(client.WithSession(ctx, sessionID(c.Session)), &d)
	stub, q := vllmpb.NewInferenceClient(cc), l.request(c)
	var trailer metadata.MD
	if c.Unary {
		_, c.Err = stub.Generate(ctx, q, grpc.Trailer(&trailer))
		if c.First = l.now(); c.Err != nil {
			c.First = 0
		}
	} else {
		stream, err := stub.GenerateStream(ctx, q)
		for err == nil {
			if _, err = stream.Recv(); err == nil {
				if c.Received++; c.Received == 1 {
					c.First = l.now()
				}
			}
		}
		if !errors.Is(err, io.EOF) {
			c.Err = err
		}
		if stream != nil {
			trailer = stream.Trailer()
		}
	}
	c.End = l.now()
	c.Replica, c.Attempts = d.Replica, d.Attempts
	if c.Outcome = outcomeOf(c); c.Outcome == Served {
		c.Prompt = l.promptTokens + freshTokens
		c.Cached = figure(trailer, grpcserver.TrailerCached)
	}
}

// request is the call's message: the session's prompt and some tokens of its own.
func (l *load) request(c *Call) *vllmpb.GenerateRequest {
	id, output := "chaos-"+strconv.Itoa(c.Index), l.outputTokens
	if c.Long {
		output = l.longTokens
	}
	prompt := workload.Request{PromptTokens: l.promptTokens + freshTokens, Segments: []workload.Segment{
		{Seed: l.seed<<32 + uint64(c.Session), Len: int32(l.promptTokens)},
		{Seed: workload.OutputSeed(id), Len: freshTokens},
	}}
	return &vllmpb.GenerateRequest{
		RequestId: id, Stopping: &vllmpb.StoppingCriteria{MaxNewTokens: uint32(output)},
		Prompt: &vllmpb.GenerateRequest_TokenIds{TokenIds: &vllmpb.TokenIds{Ids: prompt.Tokens()}},
	}
}

// freshTokens is what a prompt has of its own.
const freshTokens = 32

func sessionID(n int) string { return "session-" + strconv.Itoa(n) }

func figure(md metadata.MD, name string) int {
	if v := md.Get(name); len(v) > 0 {
		if n, err := strconv.Atoi(v[0]); err == nil {
			return n
		}
	}
	return 0
}
