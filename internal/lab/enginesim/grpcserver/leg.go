package grpcserver

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/lab/enginesim"
	"github.com/warmpath/warmpath/internal/lab/enginesim/kvtransfer"
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
	// turn is how many tokens a prefill leg gets.
	turn int
	// wait: the decode leg may begin before the prefill leg.
	wait bool
	// inStruct: the parameters are a Struct.
	inStruct bool
	// answer is the parameters for what gets the KV of this leg, once it is computed; empty where the client has them
	// already, or nothing gets it.
	answer string

	tokens []uint32     // of the prompt
	seed   kvindex.Seed // of their hash
	wrong  bool         // the KV that came is that of other tokens, and so are all that follows from it

	source *kvtransfer.Leg  // where another engine gets the KV of this leg
	pull   *kvtransfer.Pull // where this leg gets KV
	held   bool             // the KV is held, or was
}

// content is the hash of the first n tokens of prompt and output that the leg has the KV of.
func (l *leg) content(n int, call *enginesim.Call) uint64 {
	tokens := slices.Clone(l.tokens[:min(n, len(l.tokens))])
	for i := len(tokens); i < n; i++ {
		tokens = append(tokens, call.Token(i-len(l.tokens)))
	}
	hash := kvindex.AppendTokens(nil, tokens, n, l.seed)[0]
	if l.wrong {
		hash = ^hash
	}
	return hash
}

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
		if err := l.meet(ctx); err != nil || l.addr == "" {
			return err
		}
		r.Received = min(l.turn, r.PromptTokens)
	} else {
		if err := l.side.at(ctx, DecodeReceived, id); err != nil {
			return err
		}
		r.Received, r.Hold = r.PromptTokens, k.Keep > 0
	}
	r.Transfer = transferBase + time.Duration(r.Received)*transferPerToken
	return l.gets(ctx, id, r)
}

// gets waits until another engine has the KV that the leg gets. As a real engine it does not compare what that is of:
// with that of other tokens the output is wrong.
func (l *leg) gets(ctx context.Context, id string, r *enginesim.Request) error {
	k := l.side
	within, cancel := context.WithTimeout(ctx, k.srv.wall(k.Timeout))
	defer cancel()
	pull, err := kvtransfer.Open(within, l.addr, l.key, l.params, l.wait)
	if err == nil {
		l.pull = pull
		if err := l.moment(ctx, DecodeAsks, id); err != nil {
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
	if pull.Content != l.content(r.Received, nil) {
		l.wrong, r.OutputSeed = true, ^r.OutputSeed
	}
	return l.moment(ctx, DecodeTransfers, id)
}

// moment reports a moment of a decode leg.
func (l *leg) moment(ctx context.Context, m Moment, id string) error {
	if l.prefill {
		return nil
	}
	return l.side.at(ctx, m, id)
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
		if err := l.side.at(ctx, PrefillSubmitted, id); err != nil || l.pull == nil {
			return err
		}
	}
	select {
	case <-call.Received():
	case <-l.pull.Lost():
		return lost(kvtransfer.ErrLost)
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	if err := l.moment(ctx, DecodeHasKV, id); err != nil {
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
	l.holds(call, call.Result().PromptTokens, 0)
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

// holds holds the KV of the first tokens of prompt and output for another engine.
func (l *leg) holds(call *enginesim.Call, tokens int, lease time.Duration) {
	kv := kvtransfer.KV{Content: l.content(tokens, call), Lease: lease, Release: call.Release}
	switch k := l.side; k.Connector {
	case NIXL:
		l.answer = k.answerParams(l, tokens)
		if kv.Params = l.answer; l.inStruct {
			kv.Params = canonical(asStruct(l.answer))
		}
	case Mooncake:
		kv.Params = k.EngineID
	}
	l.held = true
	l.source.Ready(kv)
}

// keeps has a decode engine hold what it has computed of the turn, for the prefill leg of the next one: all but the
// last token of the output.
func (l *leg) keeps(call *enginesim.Call) (err error) {
	k, r := l.side, call.Result()
	if k.Keep == 0 || k.Connector != NIXL || r.Aborted {
		return nil
	}
	if l.source, err = k.source.Announce(l.own); err != nil {
		return lost(err)
	}
	l.holds(call, r.PromptTokens+r.OutputTokens-1, k.srv.wall(k.Keep))
	return nil
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
	if err := l.side.at(ctx, DecodeEnds, id); err != nil {
		return err
	}
	return l.keeps(call)
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
