package grpcserver

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/workload"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// prompt is a request of either dialect.
type prompt struct {
	id      string
	ids     []uint32
	text    string
	output  int
	model   string
	adapter string
	salt    string
	bypass  bool
	leg     *leg // nil for a whole request
}

// run takes a request through the engine. It calls on for every batch of new tokens [from, to), and once more
// with done set when the call has ended by itself or by Abort; on may be called with no new tokens then.
func (s *Server) run(ctx context.Context, p prompt, on func(c *enginesim.Call, from, to int, done bool) error) error {
	if s.cfg.ServedModel != "" && p.model != "" && p.model != s.cfg.ServedModel {
		return status.Errorf(codes.NotFound, "model %q is not served here, %q is", p.model, s.cfg.ServedModel)
	}
	if err := checkRank(ctx); err != nil {
		return err
	}
	if err := s.enter(ctx, p.leg); err != nil {
		return err
	}
	defer s.leave()
	if p.id == "" {
		p.id = "enginesim-" + strconv.FormatUint(s.fresh.Add(1), 10)
	}
	req := s.request(&p)
	defer p.leg.end()
	if err := p.leg.begin(ctx, p.id, &req); err != nil {
		return err
	}
	call, err := s.driver.Submit(req)
	if err != nil {
		return statusOf(err)
	}
	defer s.track(p.id, call.Abort)()
	defer func() {
		call.Abort() // nothing if it has ended
		if l := p.leg; l != nil && !l.held {
			call.Release() // of a prefill leg that is given up after its last token
		}
		_ = grpc.SetTrailer(ctx, figures(call.Result())) // fails outside of a call only
	}()
	if s.cfg.EarlyHeaders {
		if err := grpc.SendHeader(ctx, nil); err != nil {
			return err
		}
	}
	if err := p.leg.submitted(ctx, p.id, call); err != nil {
		return err
	}
	return s.tokens(ctx, &p, call, on)
}

// request is what the engine gets of a prompt.
func (s *Server) request(p *prompt) enginesim.Request {
	size, seed := s.driver.Config().BlockSize, kvindex.SeedFor("", p.adapter, p.salt)
	tokens := p.ids
	if p.text != "" {
		tokens = workload.TextTokens(p.text)
	}
	if p.leg != nil {
		p.leg.tokens, p.leg.seed = tokens, seed
	}
	req := enginesim.FromTokens(p.id, tokens, p.output, size, seed)
	req.BypassCache, req.Prompt, req.Adapter, req.CacheSalt = p.bypass, tokens, p.adapter, p.salt
	return req
}

// tokens passes on the tokens of a call until it has ended.
func (s *Server) tokens(ctx context.Context, p *prompt, call *enginesim.Call,
	on func(c *enginesim.Call, from, to int, done bool) error) error {
	wait := ctx
	if s.cfg.IgnoreCancel {
		wait = s.killed
	}
	for have := 0; ; {
		count, done, err := call.Wait(wait, have)
		if err != nil {
			return statusOf(err)
		}
		if done && p.leg != nil && !p.leg.prefill && count-have > 1 { // the last token is a moment of its own
			count, done = count-1, false
		}
		if err := p.leg.beforeTokens(ctx, p.id, call, have == 0, done); err != nil {
			return err
		}
		if done || !s.cfg.IgnoreCancel || ctx.Err() == nil {
			if err := on(call, have, count, done); err != nil || done {
				return err
			}
		}
		have = count
	}
}

// checkRank refuses ranks that do not exist: the engine has rank 0 only.
func checkRank(ctx context.Context) error {
	for _, v := range metadata.ValueFromIncomingContext(ctx, warmpathv1.MetadataDataParallelRank) {
		rank, err := strconv.ParseUint(v, 10, 32)
		if err != nil {
			return status.Errorf(codes.InvalidArgument, "%s: %q is not a number", warmpathv1.MetadataDataParallelRank, v)
		}
		if rank != 0 {
			return noRank(int64(rank))
		}
	}
	return nil
}

func noRank(rank int64) error {
	return status.Errorf(codes.InvalidArgument, "data-parallel rank %d does not exist, there is only 0", rank)
}

// figures is the trailer with the engine's figures.
func figures(r enginesim.Result) metadata.MD {
	ms := func(d time.Duration) string { return strconv.FormatFloat(float64(d)/1e6, 'f', 3, 64) }
	md := metadata.Pairs(
		TrailerE2E, ms(r.End-r.Arrival),
		TrailerComputed, strconv.Itoa(r.ComputedTokens),
		TrailerCached, strconv.Itoa(r.CachedTokens),
	)
	if r.OutputTokens > 0 {
		md.Set(TrailerTTFT, ms(r.TTFT()))
	}
	return md
}
