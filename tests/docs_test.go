package tests

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/consistenthash"
	"github.com/warmpath/warmpath/balancer/policy/kvaware"
	"github.com/warmpath/warmpath/balancer/policy/prefixaffinity"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/router"
	routerstate "github.com/warmpath/warmpath/internal/router/state"
	"github.com/warmpath/warmpath/internal/tokenize"
)

// section returns what stands under a heading of a page of docs, up to the next
// heading that is not below it.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	text := readDoc(t, page)
	_, after, ok := strings.Cut(text, "\n"+heading+"\n")
	require.True(t, ok, "%s has no heading %q", page, heading)
	level := strings.Repeat("#", strings.IndexByte(heading, ' '))
	if end := regexp.MustCompile(`(?m)^#{1,` + strconv.Itoa(len(level)) + `} `).FindStringIndex(after); end != nil {
		after = after[:end[0]]
	}
	return after
}

func readDoc(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", page))
	require.NoError(t, err)
	return string(text)
}

// table returns the cells of the rows of the first table in a text, without its head.
func table(text string) (rows [][]string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			if rows != nil {
				break
			}
			continue
		}
		cells := strings.Split(strings.Trim(strings.ReplaceAll(line, `\|`, "\x00"), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(strings.ReplaceAll(cells[i], "\x00", "|"))
		}
		rows = append(rows, cells)
	}
	return rows[min(2, len(rows)):]
}

// fieldsOf returns the names in JSON of a struct's fields.
func fieldsOf(v any) (names []string) {
	t := reflect.TypeOf(v)
	for i := range t.NumField() {
		if t.Field(i).Anonymous { // has a table of its own
			continue
		}
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "-" {
			names = append(names, name)
		}
	}
	return names
}

// Every field of every config is in config.md, no other, and with its default. Fields that share a row have one default.
func TestConfigPageNamesEveryField(t *testing.T) {
	for heading, config := range map[string]any{
		"## The channel":           policy.Config{}.WithDefaults(),
		"## Outlier detection":     policy.Ejection{}.WithDefaults(),
		"## Decisions":             policy.Adoption{CentralDeadline: policy.Duration(policy.DefaultCentralDeadline)},
		"## prefix_cache_affinity": prefixaffinity.Config{}.WithDefaults(),
		"## kv_aware":              kvaware.Config{}.WithDefaults(),
		"## consistent_hash":       consistenthash.Config{}.WithDefaults(),
		"## Dialects":              dialect.Dialect{},
		"## Tokenizer":             tokenize.DefaultConfig(),
		"## The fleet file":        policy.Attributes{},
	} {
		t.Run(heading, func(t *testing.T) {
			raw, err := json.Marshal(config)
			require.NoError(t, err)
			var defaults map[string]json.RawMessage
			require.NoError(t, json.Unmarshal(raw, &defaults))
			var named []string
			for _, row := range table(section(t, "docs/config.md", heading)) {
				for name := range strings.SplitSeq(row[0], ", ") {
					name = strings.Trim(name, "`")
					named = append(named, name)
					cell := strings.Trim(row[1], "`")
					if len(row) < 3 || heading == "## The fleet file" || !json.Valid([]byte(cell)) {
						continue
					}
					if want := defaults[name]; want != nil {
						require.JSONEq(t, string(want), cell, name)
					} else {
						require.Contains(t, []string{"0", `""`, "[]", "false"}, cell, name)
					}
				}
			}
			require.ElementsMatch(t, fieldsOf(config), named)
		})
	}
	page := section(t, "docs/config.md", "## Dialects")
	for _, inner := range []any{dialect.Messages{}, dialect.Media{}, dialect.Usage{}} {
		for _, name := range fieldsOf(inner) {
			require.Contains(t, page, "`"+name+"`", "of %T", inner)
		}
	}
	page = readDoc(t, "docs/config.md")
	for _, name := range policy.Names() {
		if strings.HasSuffix(name, "_of_tests") { // registered by a test of this package
			continue
		}
		require.Regexp(t, `(?m)^## .*`+name, page)
	}
}

// Every metric, attribute and reason is in operate.md.
func TestOperatePageNamesWhatIsSeen(t *testing.T) {
	files, err := filepath.Glob("../internal/telemetry/*.go")
	require.NoError(t, err)
	source := ""
	for _, f := range files {
		if !strings.HasSuffix(f, "_test.go") {
			source += readDoc(t, strings.TrimPrefix(f, "../"))
		}
	}
	quoted := regexp.MustCompile(`"(warmpath\.[a-z_.]+)"`)
	metrics, spans := section(t, "docs/operate.md", "## Metrics"), section(t, "docs/operate.md", "## Spans")
	for _, m := range quoted.FindAllStringSubmatch(source, -1) {
		if m[1] == "warmpath.cached_tokens" { // a key that nothing writes yet
			continue
		}
		require.Contains(t, metrics+spans, "`"+m[1]+"`")
	}
	for _, m := range quoted.FindAllStringSubmatch(strings.ReplaceAll(metrics+spans, "`", `"`), -1) {
		require.Contains(t, source, m[0], "there is no such thing")
	}
	reasons := section(t, "docs/operate.md", "## Reasons")
	found := regexp.MustCompile(`Reason = "([a-z_]+)"`).FindAllStringSubmatch(readDoc(t, "balancer/policy/decision.go"), -1)
	require.Greater(t, len(found), 10)
	for _, m := range found {
		require.Contains(t, reasons, "`"+m[1]+"`")
	}
}

// vectors returns the rows of a table of hashes.md.
func vectors(t *testing.T, name string) [][]string {
	t.Helper()
	_, after, ok := strings.Cut(readDoc(t, "docs/hashes.md"), "<!-- vectors: "+name+" -->\n")
	require.True(t, ok, name)
	rows := table(after)
	require.NotEmpty(t, rows, name)
	return rows
}

func parseHex(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 16, 64)
	require.NoError(t, err)
	return n
}

func hexes(hashes []uint64) string {
	s := make([]string, len(hashes))
	for i, h := range hashes {
		s[i] = fmt.Sprintf("%016x", h)
	}
	return strings.Join(s, " ")
}

// score is the page's formula, implemented a second time.
func score(key uint64, id string) uint64 {
	return xxh3.HashSeed(append(binary.LittleEndian.AppendUint64(nil, key), id...), 1337)
}

func rendezvousOrder(key uint64, ids []string) []string {
	ids = slices.Sorted(slices.Values(ids))
	slices.SortStableFunc(ids, func(a, b string) int {
		if score(key, a) > score(key, b) {
			return -1
		}
		return 1
	})
	return ids
}

func TestHashesPage(t *testing.T) {
	for _, v := range vectors(t, "seed") {
		require.Equal(t, v[3], fmt.Sprintf("%016x", uint64(kvindex.SeedFor(v[0], v[1], v[2]))))
	}
	for _, v := range vectors(t, "tokens") {
		var tokens []uint32
		for s := range strings.FieldsSeq(v[0]) {
			n, err := strconv.ParseUint(s, 10, 32)
			require.NoError(t, err)
			tokens = append(tokens, uint32(n))
		}
		seed := kvindex.Seed(parseHex(t, v[1]))
		hashes := kvindex.AppendTokens(nil, tokens, 4, seed)
		if rest := tokens[4*len(hashes):]; len(rest) > 0 {
			hashes = tail(hashes, kvindex.AppendTokens(nil, rest, len(rest), seed)[0])
		}
		require.Equal(t, v[2], hexes(hashes))
	}
	for _, v := range vectors(t, "text") {
		seed := kvindex.Seed(parseHex(t, v[1]))
		hashes := kvindex.AppendText(nil, v[0], 8, seed)
		if rest := v[0][8*len(hashes):]; rest != "" {
			hashes = tail(hashes, kvindex.AppendText(nil, rest, len(rest), seed)[0])
		}
		require.Equal(t, v[2], hexes(hashes))
	}
	for _, v := range vectors(t, "score") {
		require.Equal(t, v[2], fmt.Sprintf("%016x", score(parseHex(t, v[0]), v[1])))
	}
	for _, v := range vectors(t, "order") {
		require.Equal(t, strings.Fields(v[1]), rendezvousOrder(parseHex(t, v[0]), []string{"r0", "r1", "r2", "r3", "r4"}))
	}
	for _, v := range vectors(t, "session") {
		id := v[0]
		if n, of, ok := strings.Cut(id, " × "); ok {
			times, err := strconv.Atoi(n)
			require.NoError(t, err)
			id = strings.Repeat(of, times)
		}
		key := routerstate.SessionKey(id)
		require.Equal(t, v[1], key)
		require.Equal(t, v[2], fmt.Sprintf("%016x", xxh3.HashStringSeed(key, 1337)))
		require.Equal(t, v[3], fmt.Sprintf("%016x", xxh3.HashString(key)))
	}
	for _, v := range vectors(t, "ring hash") {
		require.Equal(t, v[1], fmt.Sprintf("%016x", consistenthash.Hash(v[0])))
	}
	ring, err := consistenthash.New(consistenthash.Config{}.WithDefaults())
	require.NoError(t, err)
	r := policytest.NewRouter(t, ring, policytest.Fleet(3))
	for _, v := range vectors(t, "ring") {
		q := policytest.Session(v[0])
		var order []string
		for range 3 {
			order = append(order, policytest.Route(t, r, q))
			q.Exclude = order
		}
		require.Equal(t, strings.Fields(v[1]), order)
	}
}

// tail chains the hash of the tokens after the last full block, as the page describes.
func tail(hashes []uint64, local uint64) []uint64 {
	if len(hashes) == 0 {
		return []uint64{local}
	}
	b := binary.LittleEndian.AppendUint64(nil, hashes[len(hashes)-1])
	return append(hashes, xxh3.HashSeed(binary.LittleEndian.AppendUint64(b, local), 1337))
}

// The policy follows hashes.md: a fresh client sends a prompt, and a session, to the replica that the page's rules
// for tails, keys and order give.
func TestPolicyFollowsTheHashesPage(t *testing.T) {
	ids := []string{"r0", "r1", "r2", "r3", "r4"}
	route := func(q *policy.Request) (order []string) {
		p, err := policy.New(kvaware.Name, nil)
		require.NoError(t, err)
		r := policytest.NewRouter(t, p, policytest.Fleet(5))
		for range ids {
			var b router.Reservation
			require.NoError(t, r.Reserve(context.Background(), q, &b, router.How{NoWait: true}))
			order = append(order, b.Decision.Replica.ID)
			b.Release()
			router.NextAttempt(q, b.Decision.Replica)
		}
		return order
	}
	for i := range 20 {
		text := strings.Repeat(fmt.Sprintf("prompt %d ", i), 1+i)
		q := &policy.Request{Model: "llama"}
		q.SetPrompt(policy.Prompt{Text: text})
		seed := kvindex.SeedFor("llama", "", "")
		first := text[:min(64, len(text))] // in a fresh client the first block distinguishes
		require.Equal(t, rendezvousOrder(xxh3.HashStringSeed(first, uint64(seed)), ids), route(q))

		session := fmt.Sprintf("session %d", i)
		require.Equal(t, rendezvousOrder(xxh3.HashStringSeed(session, 1337), ids), route(policytest.Session(session)))
	}
}
