package requestkey

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/balancer/dialect"
)

// A Table maps gRPC methods to their dialects. Immutable.
type Table struct {
	methods map[string]*Method
	own     map[string]bool // methods that the user described
	unknown *Method
}

// NewTable builds a table of the built-in dialects and the user's own, which
// replace built-in ones for the methods they name.
func NewTable(user ...dialect.Dialect) (*Table, error) {
	t := &Table{methods: make(map[string]*Method)}
	for _, d := range builtin {
		if _, err := t.add(d); err != nil {
			return nil, err
		}
	}
	t.own = make(map[string]bool)
	for i, d := range user {
		name := d.Name
		if name == "" && len(d.Methods) > 0 {
			name = d.Methods[0]
		}
		added, err := t.add(d)
		if err == nil {
			err = checkLinked(d, added)
		}
		if err != nil {
			return nil, fmt.Errorf("dialects[%d] (%s): %w", i, name, err)
		}
		for _, m := range added {
			if t.own[m] {
				return nil, fmt.Errorf("dialects[%d] (%s): methods: %s is described twice", i, name, m)
			}
			t.own[m] = true
		}
	}
	var err error
	t.unknown, err = newMethod(unknown)
	return t, err
}

// With returns a table that has more of the user's dialects, for the methods that the
// user's own in t do not name.
func (t *Table) With(more ...dialect.Dialect) (*Table, error) {
	all, err := NewTable(more...)
	if err != nil {
		return nil, err
	}
	for m := range t.own {
		all.methods[m], all.own[m] = t.methods[m], true
	}
	return all, nil
}

func (t *Table) add(d dialect.Dialect) ([]string, error) {
	d, err := extend(d)
	if err != nil {
		return nil, err
	}
	if err := check(d); err != nil {
		return nil, err
	}
	m, err := newMethod(d)
	if err != nil {
		return nil, err
	}
	for _, name := range d.Methods {
		t.methods[name] = m
	}
	return d.Methods, nil
}

// Lookup returns how to read the messages of a full method name. For a method
// that has no dialect it returns one that finds fields by their usual names.
// O(1), no allocation.
func (t *Table) Lookup(method string) *Method {
	if m := t.methods[method]; m != nil {
		return m
	}
	return t.unknown
}

// A Method reads the messages of the methods of one dialect. Safe for concurrent
// use.
type Method struct {
	dialect  dialect.Dialect
	request  fields
	response fields
	rank     protowire.Number
}

// DeferStream reports whether a client or bidirectional stream is to be opened
// with its first message.
func (m *Method) DeferStream() bool { return m != nil && m.dialect.DeferStream }

// HasPrompt reports whether a request may carry a prompt. Of a method without a
// dialect is unknown, so it may.
func (m *Method) HasPrompt() bool {
	return m != nil && (m.request.slots&(promptSlots|slotJSON.bit()) != 0 || m.dialect.Tensors != nil)
}

// HasUsage reports whether responses may carry usage.
func (m *Method) HasUsage() bool { return m != nil && m.response.slots != 0 }

func newMethod(d dialect.Dialect) (*Method, error) {
	m := &Method{dialect: d}
	q, a := &m.request, &m.response
	for _, p := range []struct {
		in   *fields
		name string
		slot slot
		path dialect.Path
	}{
		{q, "request_id", slotRequestID, d.RequestID},
		{q, "session", slotSession, d.Session},
		{q, "model", slotModel, d.Model},
		{q, "adapter", slotAdapter, d.Adapter},
		{q, "cache_salt", slotCacheSalt, d.CacheSalt},
		{q, "max_tokens", slotMaxTokens, d.MaxTokens},
		{q, "rank", slotRank, d.Rank},
		{q, "prompt", slotPrompt, d.Prompt},
		{q, "tokens", slotTokens, d.Tokens},
		{q, "json_body", slotJSON, d.JSONBody},
		{a, "usage.prompt", slotUsagePrompt, d.Usage.Prompt},
		{a, "usage.output", slotUsageOutput, d.Usage.Output},
		{a, "usage.cached", slotUsageCached, d.Usage.Cached},
		{a, "usage.output_delta", slotUsageDelta, d.Usage.OutputDelta},
		{a, "usage.json", slotUsageJSON, d.Usage.JSON},
	} {
		if _, err := p.in.add(&p.in.root, p.name, p.slot, p.path); err != nil {
			return nil, err
		}
	}
	if x := d.Messages; x != nil {
		err := q.group("messages", slotTurn, x.Path,
			inner{"role", slotRole, x.Role}, inner{"content", slotContent, x.Content})
		if err != nil {
			return nil, err
		}
	}
	if x := d.Media; x != nil {
		err := q.group("media", slotMedia, x.Path,
			inner{"id", slotMediaID, x.ID}, inner{"offset", slotMediaOffset, x.Offset})
		if err != nil {
			return nil, err
		}
	}
	for _, group := range d.OneOf {
		q.root.exclude(group)
	}
	if d.Rank != "" {
		i := slices.IndexFunc(q.root.edges, func(e *edge) bool { return e.slots&slotRank.bit() != 0 })
		if st := q.root.edges[i]; st.num == 0 || st.next != nil || st.list || st.key != "" {
			return nil, fmt.Errorf("rank: %q: want the number of one field of the request", d.Rank)
		}
		m.rank = protowire.Number(q.root.edges[i].num)
	}
	return m, nil
}
