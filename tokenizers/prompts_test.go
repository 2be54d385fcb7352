package tokenizers_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/tokenize"
	_ "github.com/warmpath/warmpath/tokenizers" // registers before this package does
	"github.com/warmpath/warmpath/tokenizers/internal/bpe"
	"github.com/warmpath/warmpath/tokenizers/internal/tiktoken"
)

// counting is an encoder between fixed tokens at both ends of every prompt; it counts the bytes that it encodes.
type counting struct {
	*bpe.Encoder
	bytes atomic.Int64
}

const begin, end = 1_000_000, 1_000_001

func (c *counting) Around() (before, after []uint32) { return []uint32{begin}, []uint32{end} }

func (c *counting) Encode(ctx context.Context, dst []uint32, text string, from, to int) ([]uint32, error) {
	c.bytes.Add(int64(to - from))
	return c.Encoder.Encode(ctx, dst, text, from, to)
}

var counted sync.Map // path -> *counting

func init() {
	dialect.RegisterTokenizer("file", func(path string) (dialect.Tokenizer, error) {
		e, err := tiktoken.Open("cl100k_base")
		if err != nil {
			return nil, err
		}
		c := &counting{Encoder: e}
		counted.Store(path, c)
		return c, nil
	})
	tokenize.RegisterChatTemplate(func(string) (tokenize.ChatTemplate, error) { return upper{}, nil })
}

// upper is a chat template.
type upper struct{}

func (upper) Render(_ context.Context, c requestkey.Chat) (string, error) {
	var b strings.Builder
	for _, m := range c.Messages {
		if m["role"] == "" {
			return "", errors.New("a turn has no role")
		}
		b.WriteString(strings.ToUpper(m["role"].(string)) + ": " + m["content"].(string) + "\n")
	}
	return b.String(), nil
}

// open opens a config and also returns the encoder behind it.
func open(t testing.TB, c tokenize.Config, log *bytes.Buffer) (*tokenize.Prompts, *counting) {
	t.Helper()
	return openWith(t, c, tokenize.Options{Timeout: time.Minute}, log)
}

func openWith(t testing.TB, c tokenize.Config, o tokenize.Options, log *bytes.Buffer) (*tokenize.Prompts, *counting) {
	t.Helper()
	if log != nil {
		o.Logger = slog.New(slog.NewTextHandler(log, nil))
	}
	p, err := tokenize.Open(c, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	enc, _ := counted.Load(c.From)
	e, _ := enc.(*counting)
	return p, e
}

func local(t testing.TB) tokenize.Config {
	c := tokenize.DefaultConfig()
	c.From = t.Name()
	return c
}

func ask(t testing.TB, p *tokenize.Prompts, text string) []uint32 {
	t.Helper()
	tokens, err := p.Tokenize(context.Background(), &policy.Request{Prompt: policy.Prompt{Text: text}})
	require.NoError(t, err)
	return tokens
}

func chatText(t testing.TB, json string) string {
	t.Helper()
	table, err := requestkey.NewTable(dialect.Dialect{Methods: []string{"/s/m"}, JSONBody: "1"})
	require.NoError(t, err)
	var q policy.Request
	raw := append([]byte{0x0A, byte(len(json))}, json...)
	require.Less(t, len(json), 128)
	table.Lookup("/s/m").Request(&q, policy.UsesPrompt, &raw)
	require.NotEmpty(t, q.Prompt.Text)
	return q.Prompt.Text
}

var parts = []string{"the quick brown fox ", "jumps\n\n", "  over  ", "1234 ", "日本語", "é'LL ", "func() {\n\treturn\n}\n", "\n", " ", strings.Repeat("x", 300), strings.Repeat(" ", 200)}

// However the cache is filled, and however little it holds, a prompt's tokens are those of its text alone.
func TestCachedTokensAreTheTokens(t *testing.T) {
	for _, budget := range []int64{0, 100 << 10, -1} {
		p, e := openWith(t, local(t), tokenize.Options{Timeout: time.Minute, CacheBytes: budget}, nil)
		r := rand.New(rand.NewPCG(8, uint64(budget)))
		conversations := []string{"", "", ""}
		for range 60 {
			i := r.IntN(len(conversations))
			for range r.IntN(60) {
				conversations[i] += parts[r.IntN(len(parts))]
			}
			if len(conversations[i]) > 30_000 { // another one with the same beginning
				conversations[i] = conversations[r.IntN(len(conversations))][:10_000*r.IntN(2)]
				conversations[i] = strings.ToValidUTF8(conversations[i], "")
			}
			want, err := e.Encoder.Encode(context.Background(), []uint32{begin}, conversations[i], 0, len(conversations[i]))
			require.NoError(t, err)
			got := ask(t, p, conversations[i])
			require.Equal(t, append(want, end), got)
		}
	}
}

func TestOnlyWhatIsNewIsEncoded(t *testing.T) {
	p, e := open(t, local(t), nil)
	text := ""
	for i := range 1000 {
		text += strings.Join(parts[:7], strconv.Itoa(i))
	}
	ask(t, p, text)
	require.EqualValues(t, len(text), e.bytes.Swap(0))
	ask(t, p, text)
	require.Zero(t, e.bytes.Load())
	ask(t, p, text+" and a little more")
	require.Less(t, e.bytes.Load(), int64(3*4096))
}

func TestEqualPromptsAtOnce(t *testing.T) {
	p, _ := openWith(t, local(t), tokenize.Options{Timeout: time.Minute, CacheBytes: -1}, nil)
	text := strings.Repeat("the quick brown fox ", 5000)
	want := ask(t, p, text)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() { require.Equal(t, want, ask(t, p, text)) })
	}
	wg.Wait()
}

func TestChats(t *testing.T) {
	chat := chatText(t, `{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yes"}]}`)
	c := local(t)
	c.ChatTemplate = "template.jinja"
	p, e := open(t, c, nil)
	want, err := e.Encoder.Encode(context.Background(), nil, "USER: hi\nASSISTANT: yes\n", 0, 24)
	require.NoError(t, err)
	require.Equal(t, want, ask(t, p, chat), "a template writes special tokens itself")

	var log bytes.Buffer
	p, _ = open(t, local(t), &log)
	ask := func(text string) error {
		_, err := p.Tokenize(context.Background(), &policy.Request{Prompt: policy.Prompt{Text: text}})
		return err
	}
	for range 3 {
		require.ErrorIs(t, ask(chat), tokenize.ErrChat)
		require.ErrorIs(t, ask(chatText(t, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]}`)), tokenize.ErrMedia)
		require.ErrorIs(t, ask("one\xFDtwo"), tokenize.ErrNotText)
		require.ErrorIs(t, ask("\xFE broken"), tokenize.ErrNotText)
	}
	require.Equal(t, 3, strings.Count(log.String(), "this is logged once"), "%s", log.String())
	require.NotContains(t, log.String(), "broken")
}

func TestEndpointOfAnEngine(t *testing.T) {
	var calls atomic.Int32
	leave := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) > 3 {
			<-leave
		}
		_, _ = w.Write([]byte(`{"tokens":[5,6,7]}`))
	}))
	defer s.Close()
	defer close(leave)
	c := tokenize.DefaultConfig()
	c.From = s.URL
	var log bytes.Buffer
	p, _ := open(t, c, &log)
	for range 3 {
		require.Equal(t, []uint32{5, 6, 7}, ask(t, p, "text"))
	}
	require.EqualValues(t, 1, calls.Load(), "the result is cached")
	ask(t, p, chatText(t, `{"messages":[{"role":"user","content":"hi"}]}`))
	require.EqualValues(t, 2, calls.Load())
	_, err := p.Tokenize(context.Background(), &policy.Request{Model: "another", Prompt: policy.Prompt{Text: "text"}})
	require.NoError(t, err)
	require.EqualValues(t, 3, calls.Load(), "another model has other tokens")
	p, _ = openWith(t, c, tokenize.Options{Timeout: time.Millisecond}, &log)
	_, err = p.Tokenize(context.Background(), &policy.Request{Prompt: policy.Prompt{Text: "slow"}})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Contains(t, log.String(), "context deadline exceeded")
}

func BenchmarkTokenize8k(b *testing.B) {
	c := local(b)
	p, _ := open(b, c, nil)
	text := strings.Repeat("The quick brown fox jumps over the lazy dog, and func main() { return 42 }\n", 8192/19)
	run := func(name string, prompt func(i int) string) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for i := 0; b.Loop(); i++ {
				n += len(ask(b, p, prompt(i)))
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
	run("seen", func(int) string { return text })
	turns := make([]string, 4096)
	for i := range turns {
		turns[i] = text + "turn " + strings.Repeat("x", i%97) + string(rune('a'+i%26)) + string(rune(0x4E00+i))
	}
	run("next turn", func(i int) string { return turns[i%len(turns)] })
	p, _ = openWith(b, c, tokenize.Options{Timeout: time.Minute, CacheBytes: -1}, nil)
	run("never seen", func(int) string { return text })
	p, _ = open(b, c, nil)
	run("short, seen", func(int) string { return text[:1000] })
}
