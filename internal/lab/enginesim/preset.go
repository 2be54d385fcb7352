package enginesim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Preset is the speed and the memory of one engine. Times are in seconds.
type Preset struct {
	// Name as in Config.Preset.
	Name string
	// Base is c0: reading the weights once.
	Base float64
	// PerToken is c1: the linear layers, per prompt token.
	PerToken float64
	// Attention is c2: a prefill chunk's attention, per pair of tokens.
	Attention float64
	// Context is c3: reading the KV cache, per token of context of a decoding sequence.
	Context float64
	// PerSequence is c4: per decoding sequence.
	PerSequence float64
	// CPU is o: the scheduler and the launch of a pass.
	CPU float64
	// KVTokens is the size of the KV cache; 0 if the preset has none of its own.
	KVTokens int
	// Poly replaces the coefficients above by the mock engines' polynomials.
	Poly bool
}

// Presets are the engines that Config.Preset may name.
var Presets = []Preset{
	{Name: "h100-14b", Base: 13.6e-3, PerToken: 39.4e-6, Attention: 2e-9, Context: 6e-8, PerSequence: 27e-6,
		CPU: 3e-3, KVTokens: 281_600},
	{Name: "2xh100-8b", Base: 6.9e-3, PerToken: 17.7e-6, Attention: 1e-9, Context: 2e-8, PerSequence: 2.8e-6,
		CPU: 3e-3, KVTokens: 2_100_000},
	{Name: "mocker", Poly: true},
}

// FindPreset is the preset of this name; empty stands for the first.
func FindPreset(name string) (Preset, error) {
	i := slices.IndexFunc(Presets, func(p Preset) bool { return name == "" || p.Name == name })
	if i < 0 {
		return Preset{}, fmt.Errorf("enginesim: preset %q is not one of %s", name, strings.Join(PresetNames(), ", "))
	}
	return Presets[i], nil
}

// PresetNames are the names of Presets.
func PresetNames() (names []string) {
	for _, p := range Presets {
		names = append(names, p.Name)
	}
	return names
}

// How the KV of a prompt is moved to another engine. The bandwidth is that of one 400 Gb/s port; with the delay, the
// 12,000 tokens of a prompt in the mean take 44 ms on h100-14b (vLLM measured 29 ms p50).
const (
	transferDelay = 5 * time.Millisecond
	hbmBandwidth  = 2.7e12 // bytes per second, as in Context
	netBandwidth  = 50e9
	// polyContext stands for Context where Poly has none.
	polyContext = 6e-8
)

// Transfer is how long it takes to move the KV of so many tokens.
func (p *Preset) Transfer(tokens int) time.Duration {
	perToken := cmp.Or(p.Context, polyContext) * hbmBandwidth / netBandwidth
	return transferDelay + time.Duration(float64(tokens)*perToken*float64(time.Second))
}

// Work is what one pass computes.
type Work struct {
	// Prompt is P, the prompt tokens computed.
	Prompt int
	// Pairs is Σ n·(m + n/2) over the prefill chunks.
	Pairs float64
	// Decodes is D, the sequences decoding.
	Decodes int
	// Context is Σ ctx over them.
	Context int
	// KVUsed is the share of the KV cache that running sequences hold.
	KVUsed float64
}

// chunk adds a prefill chunk of n tokens after a context of m.
func (w *Work) chunk(n, m int) {
	w.Prompt += n
	w.Pairs += float64(n) * (float64(m) + float64(n)/2)
}

// decode adds a sequence that decodes with this many tokens of context.
func (w *Work) decode(ctx int) {
	w.Decodes++
	w.Context += ctx
}

// Prefill is how long an idle engine computes a prompt, in passes of so many tokens at most.
func (p *Preset) Prefill(tokens, budget int) (took time.Duration) {
	for done := 0; done < tokens; done += budget {
		var w Work
		w.chunk(min(budget, tokens-done), done)
		took += p.Pass(w)
	}
	return took
}

// Pass is how long a pass with this work takes.
func (p *Preset) Pass(w Work) time.Duration {
	var s float64
	if p.Poly {
		if n := float64(w.Prompt); n > 0 {
			s += (16.5 + 0.01518*n + 4.21e-7*n*n) / 1e3
		}
		if u := w.KVUsed; w.Decodes > 0 {
			s += (5.74 + 54.01*u - 25.74*u*u) / 1e3
		}
	} else {
		s = p.Base + p.PerToken*float64(w.Prompt) + p.Attention*w.Pairs + p.Context*float64(w.Context) +
			p.PerSequence*float64(w.Decodes) + p.CPU
	}
	return time.Duration(s * float64(time.Second))
}
