package enginesim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Config describes an engine. The zero value is an h100-14b.
type Config struct {
	// Preset names one of Presets; empty means h100-14b.
	Preset string
	// KVTokens is the size of the KV cache in tokens, rounded down to whole blocks; 0 means the preset's.
	// The mocker preset has none and needs it.
	KVTokens int
	// BlockSize is the tokens in a block; 0 means 16.
	BlockSize int
	// MaxBatchedTokens is the token budget of a pass; 0 means 8192, that of large GPUs (2048 on others).
	MaxBatchedTokens int
	// MaxSequences is how many sequences run at once; 0 means 1024, as on large GPUs (256 on others).
	MaxSequences int
	// MaxModelLen bounds prompt and output together; 0 means as much as the KV cache holds.
	MaxModelLen int
	// Listener receives stored and removed blocks; nil = none.
	Listener Listener
}

// resolve checks the config and fills in defaults.
func (c Config) resolve() (Config, Preset, error) {
	p, err := FindPreset(c.Preset)
	if err != nil {
		return c, p, err
	}
	c.Preset = p.Name
	for _, f := range []struct {
		name  string
		value *int
		unset int
		most  int
	}{
		{"KVTokens", &c.KVTokens, p.KVTokens, 1 << 31},
		{"BlockSize", &c.BlockSize, 16, 1 << 16},
		{"MaxBatchedTokens", &c.MaxBatchedTokens, 8192, 1 << 24},
		{"MaxSequences", &c.MaxSequences, 1024, 1 << 24},
	} {
		if *f.value = cmp.Or(*f.value, f.unset); *f.value < 0 || *f.value > f.most {
			return c, p, fmt.Errorf("enginesim: %s %d is not in 1..%d", f.name, *f.value, f.most)
		}
	}
	if c.KVTokens == 0 {
		return c, p, fmt.Errorf("enginesim: preset %s has no KV cache of its own: KVTokens is required", p.Name)
	}
	if c.KVTokens < c.BlockSize {
		return c, p, fmt.Errorf("enginesim: KVTokens %d is less than a block of %d", c.KVTokens, c.BlockSize)
	}
	c.KVTokens -= c.KVTokens % c.BlockSize
	if c.MaxModelLen < 0 {
		return c, p, fmt.Errorf("enginesim: MaxModelLen %d is negative", c.MaxModelLen)
	}
	if c.MaxModelLen == 0 || c.MaxModelLen > c.KVTokens {
		c.MaxModelLen = c.KVTokens
	}
	return c, p, nil
}

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
