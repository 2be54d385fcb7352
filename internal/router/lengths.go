package router

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/part"
)

// A lengths is how many bytes of text a token is, by model, as the engines' usage shows. Until a model is measured it is
// [policy.BytesPerToken]. Hashes do not depend on it. Safe for use by many goroutines; the zero value is ready.
type lengths struct {
	models sync.Map // by name: *length

	mu     sync.Mutex // guards the field below, and the sums of each length
	number int        // of models
}

// A length is what was measured of one model.
type length struct {
	bytesPerToken atomic.Uint64 // as math.Float64bits
	bytes, tokens float64       // sums in which an older request counts less
}

const (
	// lengthMemory is what is left of the sums at each request: they rest on the last fifty.
	lengthMemory = 0.98
	// minBytesPerToken and maxBytesPerToken bound what an engine can teach.
	minBytesPerToken, maxBytesPerToken = 1, 16
	// maxModels bounds the models that are measured: clients choose the names.
	maxModels = 256
)

// count sets the length of a prompt of text in tokens, once for a request, unless the host knows the length.
func (l *lengths) count(q *policy.Request) {
	s, p := part.OfRequest(q), &q.Prompt
	switch {
	case s.TextBytes > 0:
		return
	case p.Hashed != nil && p.Hashed.Unit > 1:
		s.TextBytes = p.Hashed.Length
	case p.Hashed == nil && len(p.Tokens) == 0:
		s.TextBytes = len(p.Text)
	}
	if s.TextBytes == 0 || q.PromptTokens != p.Len() {
		return
	}
	if known, ok := l.models.Load(q.Model); ok {
		per := math.Float64frombits(known.(*length).bytesPerToken.Load())
		q.PromptTokens = max(int(float64(s.TextBytes)/per+0.5), 1)
	}
}

// learn takes in how many tokens an engine counted in the prompt of a request.
func (l *lengths) learn(q *policy.Request, u policy.Usage) {
	bytes := part.OfRequest(q).TextBytes
	if bytes == 0 || u.PromptTokens <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.models.Load(q.Model)
	if !ok {
		if l.number == maxModels {
			return
		}
		l.number++
		known = new(length)
	}
	m := known.(*length)
	m.bytes = m.bytes*lengthMemory + float64(bytes)
	m.tokens = m.tokens*lengthMemory + float64(u.PromptTokens)
	m.bytesPerToken.Store(math.Float64bits(min(max(m.bytes/m.tokens, minBytesPerToken), maxBytesPerToken)))
	if !ok {
		l.models.Store(q.Model, m)
	}
}

// Used returns the tokens of the prompt of a request that has ended, those that were predicted as cached, and those that
// were cached, all as the engine counts; ok is false if the engine reported no cached tokens.
func Used(q *policy.Request, d *policy.Decision, u policy.Usage) (prompt, predicted, cached uint64, ok bool) {
	if u.CachedTokens < 0 {
		return 0, 0, 0, false
	}
	predicted, prompt = uint64(max(d.MatchedTokens, 0)), uint64(max(q.PromptTokens, 0))
	if u.PromptTokens > 0 {
		if part.OfRequest(q).TextBytes > 0 && prompt > 0 {
			predicted = predicted * uint64(u.PromptTokens) / prompt
		}
		prompt = uint64(u.PromptTokens)
	}
	return prompt, predicted, uint64(u.CachedTokens), true
}
