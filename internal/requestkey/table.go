package requestkey

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	slashed "path"
	"reflect"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/internal/strict"
)

// A Table maps gRPC methods to their dialects. Immutable.
type Table struct {
	own map[string]*Method // that the user described
	all map[string]*Method // own and the built-in ones; nil = the built-in ones alone

}

// ParseDialects reads the config form: a JSON array of dialects, in which an
// unknown field is an error. Nothing and null give no dialects.
func ParseDialects(raw json.RawMessage) ([]dialect.Dialect, error) {
	var c map[string][]dialect.Dialect // so that errors name the field
	if len(bytes.TrimSpace(raw)) > 0 {
		if err := strict.Decode(slices.Concat([]byte(`{"dialects":`), raw, []byte("}")), &c); err != nil {
			return nil, err
		}
	}
	_, err := NewTable(c["dialects"]...)
	return c["dialects"], err
}

// NewTable builds a table of the built-in dialects and the user's own, which
// replace built-in ones for the methods they name.
func NewTable(user ...dialect.Dialect) (*Table, error) {
	return new(Table).With(user...)
}

// With returns a table that has more of the user's dialects, for the methods that the
// user's own in t do not name.
func (t *Table) With(more ...dialect.Dialect) (*Table, error) {
	own := make(map[string]*Method)
	for i, d := range more {
		name := append(slices.Clip(d.Methods), d.Like)[0]
		m, err := newMethod(d, builtinMethods())
		if err == nil {
			err = checkLinked(d, m.dialect.Methods)
		}
		if err != nil {
			return nil, fmt.Errorf("dialects[%d] (%s): %w", i, name, err)
		}
		for _, method := range m.dialect.Methods {
			if own[method] != nil {
				return nil, fmt.Errorf("dialects[%d] (%s): methods: %s is described twice", i, name, method)
			}
			own[method] = m
		}
	}
	maps.Copy(own, t.own)
	next := &Table{own: own, all: maps.Clone(builtinMethods())}
	maps.Copy(next.all, own)
	return next, nil
}

// Lookup returns how to read the messages of a full method name. For a method
// that has no dialect it returns one that finds fields by their usual names.
// O(1), no allocation.
func (t *Table) Lookup(method string) *Method {
	all := t.all
	if all == nil {
		all = builtinMethods()
	}
	if m := all[method]; m != nil {
		return m
	}
	return all[""]
}

// Beside reports whether a method has no dialect, and is one of a service that is built in: it carries no prompt, as
// GetModelInfo.
func (t *Table) Beside(method string) bool {
	service := method[:strings.LastIndexByte(method, '/')+1]
	if len(service) < 2 || t.Lookup(method) != t.Lookup("") {
		return false
	}
	for known := range builtinMethods() {
		if strings.HasPrefix(known, service) {
			return true
		}
	}
	return false
}

// A Method reads the messages of the methods of one dialect. Safe for concurrent
// use.
type Method struct {
	dialect dialect.Dialect
	named   bool // some path has a name
	scalars bool // some path leads to one of the scalars that are read for every policy

	// In a request, in a turn of its chat, and in a message of it that holds media.
	id, session, model, adapter, salt, rank, priority, maxTokens, prompt, tokens, body, turns, media place
	role, content, mediaID, mediaOffset                                                              place
	legs                                                                                             *Legs // nil = requests are served whole
	// In a response.
	usagePrompt, usageOutput, usageCached, usageDelta, usageJSON place
	usage                                                        *usageTree // of all but usageJSON

	output *outputRule // nil where streams do not go on elsewhere
}

// DeferStream reports whether a client or bidirectional stream is to be opened
// with its first message.
func (m *Method) DeferStream() bool { return m.dialect.DeferStream }

// HasPrompt reports whether a request may carry a prompt. That of a method without a dialect may.
func (m *Method) HasPrompt() bool {
	return len(m.prompt.alts)+len(m.tokens.alts)+len(m.turns.alts)+len(m.body.alts) > 0
}

// HasUsage reports whether responses may carry usage.
func (m *Method) HasUsage() bool { return m.dialect.Usage != dialect.Usage{} }

// newMethod compiles a dialect, which may be like one of those that are known.
func newMethod(d dialect.Dialect, known map[string]*Method) (*Method, error) {
	var base *Method
	if d.Like != "" {
		if base = known[d.Like]; base == nil {
			return nil, fmt.Errorf("like: no built-in dialect for method %q", d.Like)
		}
		like := base.dialect
		like.Methods = []string{d.Like}
		overlay(reflect.ValueOf(&like).Elem(), reflect.ValueOf(d))
		d = like
	}
	if err := check(d); err != nil {
		return nil, err
	}
	m, err := compile(d)
	if err != nil {
		return nil, err
	}
	form := outputForms()[d.Methods[0]]
	if base != nil {
		if form = nil; base.output != nil {
			form = base.output.outputForm
		}
		if m.dialect.KV == base.dialect.KV {
			m.legs = base.legs
		}
	}
	if form != nil {
		m.output = m.newOutputRule(form)
	}
	return m, nil
}

// overlay copies the fields of src that are set, deep in structs.
func overlay(dst, src reflect.Value) {
	for i := range src.NumField() {
		f := src.Field(i)
		switch {
		case f.IsZero():
		case f.Kind() == reflect.Struct:
			overlay(dst.Field(i), f)
		default:
			dst.Field(i).Set(f)
		}
	}
}

// check validates what needs no compilation.
func check(d dialect.Dialect) error {
	for _, m := range d.Methods {
		if !isMethod(m) {
			return fmt.Errorf("methods: %q is not of the form /package.Service/Method", m)
		}
	}
	return cmp.Or(
		strict.Want(len(d.Methods) > 0, "methods: none given"),
		strict.Want(d.Messages == nil || d.Messages.Path != "", "messages.path: it is not set"),
		strict.Want(d.Messages == nil || d.Messages.Content != "", "messages.content: it is not set"),
		strict.Want(d.Media == nil || d.Media.Path != "", "media.path: it is not set"),
		strict.Want(d.KV == nil || d.KV.Params != "", "kv.params: it is not set"),
		strict.Want(d.Abort == "" || isMethod(d.Abort), "abort: %q is not of the form /package.Service/Method", d.Abort),
		strict.Want(d.Abort == "" || d.RequestID != "", "abort: request_id is not set, so no request could be named"),
	)
}

// isMethod reports whether s is a full method name.
func isMethod(s string) bool {
	ok, _ := slashed.Match("/?*/?*", s)
	return ok
}

// placed is a place of a method before its path is compiled.
type placed struct {
	*place
	name  string
	path  dialect.Path
	want  kind
	front *place // of the message that it is in; nil = the request, or the response
	reply bool   // it is in the response
}

// places are all places of a method that a dialect describes.
func (m *Method) places(d dialect.Dialect) []placed {
	if d.Messages == nil {
		d.Messages = new(dialect.Messages)
	}
	if d.Media == nil {
		d.Media = new(dialect.Media)
	}
	if d.KV == nil {
		d.KV = new(dialect.KV)
	}
	legs := cmp.Or(m.legs, new(Legs))
	return []placed{
		{&m.id, "request_id", d.RequestID, scalar, nil, false},
		{&m.session, "session", d.Session, scalar, nil, false},
		{&m.model, "model", d.Model, scalar, nil, false},
		{&m.adapter, "adapter", d.Adapter, scalar, nil, false},
		{&m.salt, "cache_salt", d.CacheSalt, scalar, nil, false},
		{&m.rank, "rank", d.Rank, scalar, nil, false},
		{&m.priority, "priority", d.Priority, kindNumber, nil, false},
		{&m.maxTokens, "max_tokens", d.MaxTokens, kindNumber, nil, false},
		{&m.prompt, "prompt", d.Prompt, scalar, nil, false},
		{&m.tokens, "tokens", d.Tokens, kindIDs | kindNumber | kindEncoded | kindEnd, nil, false},
		{&m.body, "json_body", d.JSONBody, scalar, nil, false},
		{&m.turns, "messages.path", d.Messages.Path, kindMessage | kindEncoded, nil, false},
		{&m.role, "messages.role", d.Messages.Role, scalar, &m.turns, false},
		{&m.content, "messages.content", d.Messages.Content, scalar | kindMessage | kindEnd, &m.turns, false},
		{&m.media, "media.path", d.Media.Path, kindMessage | kindEncoded, nil, false},
		{&m.mediaID, "media.id", d.Media.ID, scalar, &m.media, false},
		{&m.mediaOffset, "media.offset", d.Media.Offset, kindNumber | kindEnd, &m.media, false},
		{&legs.params, "kv.params", d.KV.Params, scalar | kindMessage, nil, false},
		{&legs.sequences, "kv.sequences", d.KV.Sequences, kindNumber, nil, false},
		{&legs.answer, "kv.answer", d.KV.Answer, kindText | kindEncoded | kindMessage, nil, false},
		{&m.usagePrompt, "usage.prompt", d.Usage.Prompt, scalar, nil, true},
		{&m.usageOutput, "usage.output", d.Usage.Output, scalar, nil, true},
		{&m.usageCached, "usage.cached", d.Usage.Cached, scalar, nil, true},
		{&m.usageDelta, "usage.output_delta", d.Usage.OutputDelta, scalar, nil, true},
		{&m.usageJSON, "usage.json", d.Usage.JSON, scalar, nil, true},
	}
}

func compile(d dialect.Dialect) (*Method, error) {
	m := &Method{dialect: d}
	if d.KV != nil {
		m.legs = new(Legs)
	}
	for _, p := range m.places(d) {
		alts, err := parsePath(p.path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		*p.place = place{want: p.want, plain: p.place == &m.session, alts: alts}
		m.named = m.named || slices.ContainsFunc(alts, path.hasName)
	}
	m.usage = m.newUsageTree()
	m.scalars = len(m.id.alts)+len(m.model.alts)+len(m.adapter.alts)+len(m.salt.alts) > 0
	r := m.rank.alts
	one := len(r) == 1 && len(r[0]) == 1 && r[0][0] == step{num: r[0][0].num}
	err := cmp.Or(
		strict.Want(one || len(r) == 0, "rank: %q: want the number of one field of the request", d.Rank),
		strict.In("max_tokens: ", m.maxTokens.checkTarget(d.MaxTokens)),
		strict.In("priority: ", m.priority.checkTarget(d.Priority)),
	)
	if err == nil && d.KV != nil {
		err = strict.In("kv.", m.legs.compile(d.KV))
	}
	return m, err
}

// checkLinked checks the paths of a dialect against the messages of those of its methods whose generated code the
// program links: each path must lead to something that can be read.
func checkLinked(d dialect.Dialect, methods []string) error {
	own, _ := compile(d) // without the fields of the dialect that it is like; newMethod has refused what is wrong
	for _, name := range methods {
		service, method, _ := strings.Cut(strings.TrimPrefix(name, "/"), "/")
		found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
		sd, ok := found.(protoreflect.ServiceDescriptor)
		if err != nil || !ok {
			continue
		}
		md := sd.Methods().ByName(protoreflect.Name(method))
		if md == nil {
			return fmt.Errorf("methods: the service %s has no method %s", service, method)
		}
		for _, p := range own.places(d) {
			in, front := md.Input(), []path{nil}
			if p.reply {
				in = md.Output()
			}
			if p.front != nil {
				front = p.front.alts
			}
			younger := strings.HasPrefix(p.name, "kv.") // the program's stubs may be older
			if len(p.alts) > 0 && !younger && !p.leads(in, front) {
				return fmt.Errorf("%s: %q: %s has no such field of a kind that can be read", p.name, p.path, in.FullName())
			}
		}
	}
	return nil
}

// A place is where a dialect finds something.
type place struct {
	want  kind
	plain bool   // text that is not printable is none
	alts  []path // the alternatives of a path, best first
}

// each calls take for what the best alternative that has something leads to, or else the last.
func (p *place) each(s *source, take func(value)) {
	for i, alt := range p.alts {
		found := i == len(p.alts)-1
		if !found {
			p.alternative(s, alt, func(v value) { found = found || p.filled(&v) })
		}
		if found {
			p.alternative(s, alt, take)
			return
		}
	}
}

// filled reports whether a value is something.
func (p *place) filled(v *value) bool {
	text := v.text != "" && (!p.plain || printable(v.text))
	return v.kind == kindMessage || v.kind != kindEnd && (text || v.num != 0 || len(v.ids) > 0)
}

// alternative calls take for what an alternative leads to. Of an encoded field that is not known to be a list the last
// value counts.
func (p *place) alternative(s *source, alt path, take func(value)) {
	switch {
	case alt.tensor():
		s.tensor(alt[0].key, take)
	case s.typed != nil || alt.hasList() || p.want&(kindMessage|kindIDs) != 0:
		s.walk(s.message, alt, p.want, take)
	default:
		var last value
		if s.walk(s.message, alt, p.want, func(v value) { last = v }) > 0 {
			take(last)
		}
	}
}

// first returns the first value that is something.
func (p *place) first(s *source) (first value) {
	p.each(s, func(v value) {
		if first.kind == 0 && p.filled(&v) {
			first = v
		}
	})
	return first
}

// fill sets dst, if it is empty, to the first text, in memory that nothing else writes to.
func (p *place) fill(dst *string, s *source) {
	if len(p.alts) == 0 {
		return
	}
	v := p.first(s)
	text := v.string()
	if v.kind&(kindBytes|kindEncoded) != 0 {
		text = strings.Clone(text)
	}
	*dst = cmp.Or(*dst, text)
}

// count returns the number of tokens, -1 where there is none. What lists hold is added up.
func (p *place) count(s *source) int {
	sum := -1
	p.each(s, func(v value) {
		if n := v.count(); n >= 0 {
			sum = min(max(sum, 0)+n, math.MaxInt32)
		}
	})
	return sum
}

// leads reports whether some alternative leads to a field that can be read in messages of a type, or in what one of the
// paths in front leads to.
func (p *place) leads(d protoreflect.MessageDescriptor, front []path) bool {
	return slices.ContainsFunc(p.alts, func(alt path) bool {
		return alt.tensor() || slices.ContainsFunc(front, func(before path) bool {
			if before == nil {
				return alt.leads(d, p.want)
			}
			return slices.Concat(before, alt).leads(d, p.want)
		})
	})
}
