package grpcserver

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/enginesim/kvtransfer"
)

// leg is one of the two parts of a request that was split. It belongs to the goroutine of its call. The methods of nil
// are those of a whole request and do nothing.
type leg struct {
	side    *kvSide
	prefill bool
	// room: the prefill leg waits for the decode leg before it computes, and answers when the KV was pulled.
	room bool
	// own names the KV of this leg here.
	own string
	// key names the KV that the leg gets at another engine, addr is that engine, empty = none, and params what it checks.
	key, addr, params string
	// wait: the decode leg may begin before the prefill leg.
	wait bool
	// inStruct: the parameters are a Struct.
	inStruct bool
	// answer is the parameters for the decode leg, once the KV is computed; empty where the client has them already.
	answer string

	tokens []uint32     // of the prompt
	seed   kvindex.Seed // of their hash

	source *kvtransfer.Leg  // where another engine gets the KV of this leg
	pull   *kvtransfer.Pull // where this leg gets KV
	held   bool             // the KV is held, or was
}

// content is the hash of the tokens that the leg has the KV of.
func (l *leg) content() uint64 { return kvindex.AppendTokens(nil, l.tokens, len(l.tokens), l.seed)[0] }

// lost is the status of a leg that cannot have its KV, as of vLLM's kv_load_failure_policy "fail" and of SGLang.
func lost(err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	case errors.Is(err, kvtransfer.ErrParams), errors.Is(err, kvtransfer.ErrInUse):
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}

// begin prepares a request for the engine: one that gets KV waits until that is computed. ctx is the call's.
func (l *leg) begin(ctx context.Context, id string, r *enginesim.Request) error {
	if l == nil {
		return nil
	}
	k := l.side
	if l.prefill {
		if err := l.side.at(ctx, PrefillReceived, id); err != nil {
			return err
		}
		r.Hold, r.OutputTokens = true, 1
		var err error
		if l.source, err = k.source.Announce(l.own); err != nil {
			return lost(err)
		}
		forget := k.srv.track(id, l.source.Drop)
		k.srv.work.Go(func() {
			<-l.source.Over()
			forget()
		})
		return l.meet(ctx)
	}
	if err := l.side.at(ctx, DecodeReceived, id); err != nil {
		return err
	}
	r.Received = r.PromptTokens
	r.Transfer = transferBase + time.Duration(r.Received)*transferPerToken
	return l.gets(ctx, id, r)
}

// gets waits until the prefill engine has the KV that a decode leg gets. As a real engine it does not compare what that
// is of: with that of other tokens the output is wrong.
func (l *leg) gets(ctx context.Context, id string, r *enginesim.Request) error {
	k := l.side
	within, cancel := context.WithTimeout(ctx, k.srv.wall(k.Timeout))
	defer cancel()
	pull, err := kvtransfer.Open(within, l.addr, l.key, l.params, l.wait)
	if err == nil {
		l.pull = pull
		if err := k.at(ctx, DecodeAsks, id); err != nil {
			return err
		}
		err = pull.Ready(within)
	}
	if err != nil {
		if ctx.Err() == nil && within.Err() != nil {
			err = errors.New("the prefill leg did not come in time")
		}
		return lost(err)
	}
	if pull.Content != l.content() {
		r.OutputSeed = ^r.OutputSeed
	}
	return k.at(ctx, DecodeTransfers, id)
}

// meet waits for the decode leg, where the prefill leg does.
func (l *leg) meet(ctx context.Context) error {
	if !l.room {
		return nil
	}
	timer := time.NewTimer(l.side.srv.wall(l.side.Timeout))
	defer timer.Stop()
	select {
	case <-l.source.Joined():
		return nil
	case <-timer.C:
		return lost(errors.New("the decode leg did not come in time"))
	case <-l.source.Over():
		return lost(l.source.Err())
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// submitted is called when the engine has the request: it waits until the KV that the leg gets has come.
func (l *leg) submitted(ctx context.Context, id string, call *enginesim.Call) error {
	if l == nil {
		return nil
	}
	if l.prefill {
		return l.side.at(ctx, PrefillSubmitted, id)
	}
	select {
	case <-call.Received():
	case <-l.pull.Lost():
		return lost(kvtransfer.ErrLost)
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	if err := l.side.at(ctx, DecodeHasKV, id); err != nil {
		return err
	}
	_ = l.pull.Done() // a source that is gone needs no report
	return nil
}

// computed is called with the last token of a prefill leg: the KV is held from now on.
func (l *leg) computed(ctx context.Context, id string, call *enginesim.Call) error {
	if call.Result().Aborted {
		return nil
	}
	if err := l.side.at(ctx, PrefillComputed, id); err != nil {
		return err
	}
	l.holds(call)
	if l.room {
		select {
		case <-l.source.Over():
			if err := l.source.Err(); err != nil {
				return lost(err)
			}
		case <-ctx.Done():
			l.source.Drop()
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	return l.side.at(ctx, PrefillAnswers, id)
}

// holds holds the KV of the prompt for the decode engine.
func (l *leg) holds(call *enginesim.Call) {
	kv := kvtransfer.KV{Content: l.content(), Release: call.Release}
	switch k := l.side; k.Connector {
	case NIXL:
		l.answer = k.answerParams(l)
		if kv.Params = l.answer; l.inStruct {
			kv.Params = canonical(asStruct(l.answer))
		}
	case Mooncake:
		kv.Params = k.EngineID
	}
	l.held = true
	l.source.Ready(kv)
}

// beforeTokens is called before new tokens are sent; first and done are whether they are the first and the last ones.
func (l *leg) beforeTokens(ctx context.Context, id string, call *enginesim.Call, first, done bool) error {
	switch {
	case l == nil, l.prefill && !done:
		return nil
	case l.prefill:
		return l.computed(ctx, id, call)
	}
	if first {
		if err := l.side.at(ctx, DecodeFirst, id); err != nil {
			return err
		}
	}
	if !done {
		return nil
	}
	return l.side.at(ctx, DecodeEnds, id)
}

// end gives up what the leg has begun and not finished. KV that is held stays held.
func (l *leg) end() {
	if l == nil {
		return
	}
	if l.source != nil && !l.held {
		l.source.Drop()
	}
	if l.pull != nil {
		l.pull.Close()
	}
}
