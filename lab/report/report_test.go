package report

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/lab/drive"
)

// example is a report of invented samples: affinity caches half, round robin a fifth.
func example(policies ...string) *Report {
	r := &Report{Title: "a <title>", Facts: []Fact{{"Load", "70 % & more"}}}
	r.Replicas, r.Clients = 2, 4
	for k, name := range policies {
		var ss []drive.Sample
		for i := range 300 {
			s := drive.Sample{
				At: time.Duration(i) * time.Second, Prompt: 1000, Cached: 200, Output: 11, Replica: "r<0>", Reason: "round_robin",
				TTFT: time.Duration(100+i) * time.Millisecond, TPOT: time.Duration(20+i/10) * time.Millisecond,
			}
			if name == subject {
				s.Cached, s.Reason, s.TTFT, s.TPOT = 500, "prefix_match", s.TTFT/2, s.TPOT*4/5
			}
			if i%(k+2) == 0 {
				s.Replica = "r1"
			}
			s.Latency, s.Computed = s.TTFT+10*s.TPOT, s.Prompt-s.Cached
			ss = append(ss, s)
		}
		r.Results = append(r.Results, drive.Summarize(name, 2, ss, drive.Targets{}))
	}
	return r
}

func TestText(t *testing.T) {
	lines := strings.Split(strings.TrimRight(example("round_robin", subject).Text(), "\n"), "\n")
	require.Len(t, lines, 7)
	require.Equal(t, utf8.RuneCountInString(lines[0]), utf8.RuneCountInString(lines[1]))
	require.Equal(t, []string{"round_robin", "300", "0", "20.0", "%", "250", "249", "396", "34.5", "34.0", "49.0", "100.0", "%", "11", "1.00"}, strings.Fields(lines[1]))
	require.True(t, strings.HasPrefix(lines[2], subject+" "))
	require.True(t, strings.HasSuffix(lines[2], "1.33"))

	r := simulated()
	tables := strings.Split(r.Text(), "\n\n")
	require.Len(t, tables, 4)
	require.Equal(t, "policy       follow-ups at home  requests CV\n"+
		"round_robin              40.0 %         0.25", tables[1])
	require.Equal(t, "policy       preemptions  KV busiest ÷ mean  KV CV  regret ms  split\n"+
		"round_robin            7               1.50   0.30       12.0  0.0 %", tables[2])
	require.Contains(t, tables[3], "spread")
}

// simulated is a report of the simulator over several seeds.
func simulated() *Report {
	r := example("round_robin")
	r.Results[0].Simulated = &drive.Simulated{Preemptions: 7, Spread: &drive.Spread{},
		Balance: drive.Balance{KVImbalance: 1.5, KVCV: 0.3, RegretMS: 12}}
	r.Results[0].RequestsCV, r.Results[0].FollowUpsHome = 0.25, 0.4
	return r
}

func TestSentence(t *testing.T) {
	require.Equal(t, "With 4 clients that share nothing, kv_aware finds 50 % of the prompt tokens in the engines' caches where "+
		"round_robin finds 20 %: the first token comes 50 % sooner (125 ms instead of 250), and every further one 20 % sooner (27.6 ms instead of 34.5).",
		example("consistent_hash", subject, "round_robin").Sentence())

	worse := example("round_robin", subject)
	worse.Clients = 1
	worse.Results[1].TTFT.Mean = 500
	require.Contains(t, worse.Sentence(), "With one client, ")
	require.Contains(t, worse.Sentence(), "100 % later (500 ms instead of 250), but every further one 20 % sooner")
	worse.Results[1].TPOT.Mean = 34.6
	require.Contains(t, worse.Sentence(), "but every further one about as soon")
	worse.Results[1].TPOT.Mean = 69
	require.Contains(t, worse.Sentence(), "and every further one 100 % later")

	require.Contains(t, example(subject).Sentence(), "kv_aware finds 50 % of the prompt tokens in the engines' caches; the first token takes 125 ms")
	require.Contains(t, example("round_robin").Sentence(), "round_robin finds 20 %")
	require.Contains(t, example("power_of_two_choices", "round_robin").Sentence(), "power_of_two_choices finds 20 % of the prompt tokens in the engines' caches where round_robin")
	require.Contains(t, example("consistent_hash", "power_of_two_choices").Sentence(), "where consistent_hash", "the last against the first")
	require.NotEmpty(t, (&Report{}).Sentence())

	failed := example("round_robin")
	failed.Results[0].Errors = 3
	require.Contains(t, failed.Sentence(), "; 3 calls failed")
}

// wellFormed checks that a text is wellFormed-formed XML, apart from what HTML leaves open, and returns its elements.
func wellFormed(t *testing.T, text string, html bool) (elements []string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	if html {
		d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	}
	depth := 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		switch e := token.(type) {
		case xml.StartElement:
			elements = append(elements, e.Name.Local)
			depth++
			for _, a := range e.Attr {
				require.NotContains(t, []string{"src", "href"}, a.Name.Local, "the page loads nothing")
			}
		case xml.EndElement:
			depth--
		}
	}
	require.Zero(t, depth)
	return elements
}

func count(xs []string, x string) (n int) {
	for _, y := range xs {
		if x == y {
			n++
		}
	}
	return n
}

func TestHTML(t *testing.T) {
	policies := []string{"round_robin", "power_of_two_choices", "consistent_hash", subject}
	r := example(policies...)
	r.Results[0].FirstError = errors.New("lost <it>")
	r.Results[0].Simulated = &drive.Simulated{Preemptions: 77_777}
	r.Results[0].Decisions["<reason>"] = 5
	var b bytes.Buffer
	require.NoError(t, r.HTML(&b))
	page := b.String()
	elements := wellFormed(t, page, true)
	require.Zero(t, count(elements, "script")+count(elements, "link")+count(elements, "img"), "the page loads nothing")
	require.Equal(t, 3*len(policies), count(elements, "polyline"))
	require.NotContains(t, page, "<title>a <title>")
	require.NotContains(t, page, "<reason>", "reasons come from outside")
	for _, s := range append(policies, "a &lt;title&gt;", "70 % &amp; more", "lost &lt;it&gt;", "&lt;reason&gt;", "prefix_match",
		`<td class="n">77777</td>`,
		"Time to first token", "Time per output token", "Decisions by reason", "sooner", `<td class="n">20.0 %</td>`) {
		require.Contains(t, page, s)
	}
	require.NotContains(t, page, "NaN")
}

// The busiest replica is first, so a level line is even load.
func TestLoads(t *testing.T) {
	r := &Report{}
	r.Results = []drive.Result{{Policy: "p", Loads: map[string]int{"r10": 1, "r2": 5, "r1": 3}}}
	line := r.Charts()[2].Lines[0]
	require.Equal(t, []float64{0, 1, 2}, line.X)
	require.Equal(t, []float64{5, 3, 1}, line.Y)
}

// The tables as CSV have every column and every policy.
func TestCSV(t *testing.T) {
	r := example("round_robin", subject)
	r.Results[0].Simulated = &drive.Simulated{Preemptions: 7}
	var b bytes.Buffer
	require.NoError(t, r.CSV(&b))
	tables := strings.Split(b.String(), "\n\n")
	require.Len(t, tables, 3)
	rows, err := csv.NewReader(strings.NewReader(tables[0])).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 3)
	require.Equal(t, []string{"policy", "requests", "errors"}, rows[0][:3])
	require.Equal(t, subject, rows[2][0])
	require.Equal(t, "policy,follow-ups at home,requests CV\nround_robin,0.0 %,0.00\n"+subject+",0.0 %,0.00", tables[1])
	require.Equal(t, "policy,preemptions,KV busiest ÷ mean,KV CV,regret ms,split\nround_robin,7,0.00,0.00,0.00,0.0 %\n", tables[2])
}

// Results without data are drawn too.
func TestEmpty(t *testing.T) {
	for _, r := range []*Report{{}, {Comparison: drive.Comparison{Results: []drive.Result{drive.Summarize("p", 2, nil, drive.Targets{})}}}} {
		var b bytes.Buffer
		require.NoError(t, r.HTML(&b))
		wellFormed(t, b.String(), true)
		require.NoError(t, r.CSV(&b))
		require.NotEmpty(t, r.Text())
	}
}
