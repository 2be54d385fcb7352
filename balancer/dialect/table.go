package dialect

import "fmt"

// A Table maps gRPC methods to their dialects. Immutable.
type Table struct {
	methods map[string]*Method
	own     map[string]bool // methods that the user described
	unknown *Method
}

// NewTable builds a table of the built-in dialects and the user's own, which
// replace built-in ones for the methods they name.
func NewTable(user ...Dialect) (*Table, error) {
	t := &Table{methods: make(map[string]*Method)}
	for _, d := range Builtin() {
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
func (t *Table) With(more ...Dialect) (*Table, error) {
	all, err := NewTable(more...)
	if err != nil {
		return nil, err
	}
	for m := range t.own {
		all.methods[m], all.own[m] = t.methods[m], true
	}
	return all, nil
}

func (t *Table) add(d Dialect) ([]string, error) {
	d, err := d.extend()
	if err != nil {
		return nil, err
	}
	if err := d.check(); err != nil {
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
	dialect  Dialect
	request  fields
	response fields
}

// DeferStream reports whether a client or bidirectional stream is to be opened
// with its first message.
func (m *Method) DeferStream() bool { return m != nil && m.dialect.DeferStream }

// HasPrompt reports whether a request may carry a prompt. Of a method without a
// dialect nobody knows, so it may.
func (m *Method) HasPrompt() bool {
	return m != nil && (m.request.slots&(promptSlots|slotJSON.bit()) != 0 || m.dialect.Tensors != nil)
}

// HasUsage reports whether responses may carry usage.
func (m *Method) HasUsage() bool { return m != nil && m.response.slots != 0 }

func newMethod(d Dialect) (*Method, error) {
	m := &Method{dialect: d}
	for _, p := range []struct {
		name string
		slot slot
		path Path
	}{
		{"request_id", slotRequestID, d.RequestID},
		{"session", slotSession, d.Session},
		{"model", slotModel, d.Model},
		{"adapter", slotAdapter, d.Adapter},
		{"cache_salt", slotCacheSalt, d.CacheSalt},
		{"max_tokens", slotMaxTokens, d.MaxTokens},
		{"rank", slotRank, d.Rank},
		{"prompt", slotPrompt, d.Prompt},
		{"tokens", slotTokens, d.Tokens},
		{"json_body", slotJSON, d.JSONBody},
	} {
		if err := m.request.add(p.name, p.slot, p.path); err != nil {
			return nil, err
		}
	}
	if err := m.request.addMessages(d.Messages); err != nil {
		return nil, err
	}
	for _, p := range []struct {
		name string
		slot slot
		path Path
	}{
		{"usage.prompt", slotUsagePrompt, d.Usage.Prompt},
		{"usage.output", slotUsageOutput, d.Usage.Output},
		{"usage.cached", slotUsageCached, d.Usage.Cached},
		{"usage.output_delta", slotUsageDelta, d.Usage.OutputDelta},
		{"usage.json", slotUsageJSON, d.Usage.JSON},
	} {
		if err := m.response.add(p.name, p.slot, p.path); err != nil {
			return nil, err
		}
	}
	for _, f := range []*fields{&m.request, &m.response} {
		for _, l := range f.leaves {
			f.root.insert(l)
		}
	}
	for _, group := range d.OneOf {
		m.request.root.exclude(group)
	}
	return m, nil
}
