package jinja

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/requestkey"
)

// nested returns a template that is nested n times.
func nested(open, middle, end string, n int) string {
	return strings.Repeat(open, n) + middle + strings.Repeat(end, n)
}

// No template ends or holds up the program: it is refused, or it fails for the chat.
func TestHostileTemplatesAreRefused(t *testing.T) {
	for name, template := range map[string]string{
		"name of a filter":  "{{ [1]|map(messages[0].content)|list }}",
		"parentheses":       "{{ " + nested("(", "1", ")", 100_000) + " }}",
		"lists":             "{{ " + nested("[", "", "]", 100_000) + " }}",
		"dictionaries":      "{{ " + nested("{'a':", "1", "}", 100_000) + " }}",
		"calls":             "{{ " + nested("f(", "1", ")", 100_000) + " }}",
		"subscripts":        "{{ " + nested("a[", "1", "]", 100_000) + " }}",
		"not":               "{{ " + strings.Repeat("not ", 100_000) + "1 }}",
		"signs":             "{{ " + strings.Repeat("- ", 100_000) + "1 }}",
		"sums":              "{{ 1" + strings.Repeat("+1", 100_000) + " }}",
		"attributes":        "{{ a" + strings.Repeat(".a", 100_000) + " }}",
		"filters":           "{{ 'a'" + strings.Repeat("|upper", 100_000) + " }}",
		"tests":             "{{ a is eq " + nested("(a is eq ", "1", ")", 100_000) + " }}",
		"else":              "{{ 1" + strings.Repeat(" if 0 else 1", 80_000) + " }}",
		"if":                "{{ 1" + strings.Repeat(" if 1", 100_000) + " }}",
		"and":               "{{ 1" + strings.Repeat(" and 1", 100_000) + " }}",
		"blocks":            nested("{% if 1 %}", "x", "{% endif %}", 40_000),
		"loops":             nested("{% for a in [1] %}", "x", "{% endfor %}", 30_000),
		"macros":            nested("{% macro a() %}", "x", "{% endmacro %}", 30_000),
		"recursive macro":   "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
		"mutual macros":     "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ b() }}",
		"recursive default": "{% macro a(x=a()) %}{% endmacro %}{{ a() }}",
		"recursive caller":  "{% macro a(n) %}{% call a(n) %}{% endcall %}{{ caller() }}{% endmacro %}{% call a(1) %}{% endcall %}",
		"loop in loops":     "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
		"exponential macro": "{% macro a(n) %}{% if n %}{{ a(n - 1) }}{{ a(n - 1) }}{% endif %}{% endmacro %}{{ a(60) }}",
		"growing text":      "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
		"growing list":      "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
		"tree of lists":     "{% set n = namespace(x=[]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
		"tree as JSON":      "{% set n = namespace(x=[]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x|tojson }}",
		"equal trees":       "{% set n = namespace(x=[], y=[]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}",
		"deep list":         "{% set n = namespace(x=[]) %}{% for i in range(100000) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}",
		"deep dictionary":   "{% set n = namespace(x={}) %}{% for i in range(100000) %}{% set n.x = {'a': n.x} %}{% endfor %}{{ n.x }}",
		"own member":        "{% set n = namespace() %}{% set n.n = [n] %}{{ n.n }}",
		"long text":         "{{ 'x' * 9999999999 }}",
		"long list":         "{{ [1, 2] * 9223372036854775807 }}",
		"long replacement":  "{% set x = 'x' * 1000000 %}{{ x.replace('x', x) }}",
		"wide":              "{{ 'a\nb'|indent(9223372036854775807) }}",
		"long range":        "{% for i in range(5000000) %}{% endfor %}",
		"long join":         "{{ (['x' * 1000000] * 1000000)|join('x' * 1000000) }}",
		"remainder":         "{{ 1 % 0 }}", "quotient": "{{ 1 // 0 }}", "least remainder": "{{ (-9223372036854775807 - 1) // -1 }}",
		"format": "{{ '%s %s' % 'x' }}", "cut format": "{{ '%' % 1 }}", "no rest": "{{ '%s' % () }}",
		"parameters": "{% macro a(" + strings.Repeat("a,", 300) + "a) %}{% endmacro %}", "arguments": "{{ a(" + strings.Repeat("a=1,", 300) + "a=1) }}",
		"source": strings.Repeat("x", maxSource+1), "tag": "{{", "block": "{%", "comment": "{#", "text": "{{ 'a", "raw": "{% raw %}", "not UTF-8": "\xFF",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(template, nil)
			require.Error(t, err)
			require.NotErrorIs(t, err, errPanic)
			require.Less(t, len(err.Error()), 300)
		})
	}
}

// A template that is harmless for the chats of dial ends when the call's time does.
func TestATemplateEndsWithItsContext(t *testing.T) {
	tpl, err := Parse("{{ messages[0].content }}{% if messages[0].content == 'long' %}{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}{% endif %}", nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	long := requestkey.Chat{Messages: []map[string]any{{"role": "user", "content": "long"}}}
	_, err = tpl.Render(ctx, long)
	require.ErrorIs(t, err, context.Canceled)
}

// What a template says may quote the chat, which is not logged.
func TestErrorsDoNotQuoteTheChat(t *testing.T) {
	for _, template := range []string{
		"{{ raise_exception('the role ' + messages[0].content) }}", "{{ messages[messages[0].content].x }}", "{{ messages[0][messages[0].content] + 'x' }}",
		"{{ messages[0].content % 1 }}", "{{ messages[0].content.index('none') }}",
	} {
		tpl, err := read(template, nil)
		require.NoError(t, err)
		_, err = tpl.Render(context.Background(), requestkey.Chat{Messages: []map[string]any{{"role": "user", "content": "secret"}}})
		require.Error(t, err, template)
		require.NotContains(t, err.Error(), "secret", template)
	}
}

// A template may refuse some kinds of chats, but none because of what it has that is not supported here.
func TestDialWritesAChatOfEachKind(t *testing.T) {
	_, err := Parse("{% for m in messages %}{{ m.content + 'x' }}{% endfor %}", nil)
	require.NoError(t, err, "it fails for a turn without content, as with Jinja2")
	for _, template := range []string{
		"{% if messages|length > 2 %}{{ 1.5 // 1 }}{% endif %}x",
		"{% if tools %}{{ 1.5 // 1 }}{% endif %}x",
		"{% for m in messages if m.content is none %}{{ 1.5 // 1 }}{% endfor %}x",
	} {
		_, err := Parse(template, nil)
		require.ErrorContains(t, err, "not supported", template)
	}
	_, err = Parse("{{ raise_exception('never') }}", nil)
	require.ErrorContains(t, err, "the template says: never")
}

// FuzzTemplate: no template panics, and what one that is read writes is bounded.
func FuzzTemplate(f *testing.F) {
	for _, s := range snippets {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, template string) {
		tpl, err := read(template, nil)
		if err != nil {
			return
		}
		v, err := readJSON([]byte(names))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		m := newMachine(ctx, 100_000)
		m.bytes = 1 << 20
		s := &scope{}
		d := v.(*dict)
		for i, k := range d.keys {
			s.set(k, d.values[i])
		}
		if m.run(tpl.body, s.inner()) == nil {
			require.LessOrEqual(t, m.out.Len(), 1<<20)
		}
	})
}

// FuzzJSON: what tojson writes is what encoding/json reads.
func FuzzJSON(f *testing.F) {
	f.Add(`{"a": [1, 2.5, "x\u0000", null, true, {}]}`, 2)
	f.Fuzz(func(t *testing.T, raw string, indent int) {
		v, err := readJSON([]byte(raw))
		if err != nil {
			return
		}
		text, err := tojson(newMachine(context.Background(), maxSteps), v, given{plain: []value{indent%2 == 0, int64(indent % 5)}})
		require.NoError(t, err)
		again, err := readJSON([]byte(text.(string)))
		require.NoError(t, err)
		same, err := newMachine(context.Background(), maxSteps).equal(v, again)
		if err == nil {
			require.True(t, same, "%s: %s", raw, text)
		}
	})
}
