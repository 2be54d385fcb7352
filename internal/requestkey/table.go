package requestkey

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/warmpath/warmpath/balancer/dialect"
)

// A Table maps gRPC methods to their dialects. Immutable.
type Table struct {
	own map[string]*Method // that the user described
}

// NewTable builds a table of the built-in dialects and the user's own, which
// replace built-in ones for the methods they name.
func NewTable(user ...dialect.Dialect) (*Table, error) {
	t := &Table{own: make(map[string]*Method)}
	for i, d := range user {
		name := d.Like
		if len(d.Methods) > 0 {
			name = d.Methods[0]
		}
		m, err := newMethod(d, builtinMethods())
		if err == nil {
			err = checkLinked(d, m.dialect.Methods)
		}
		if err != nil {
			return nil, fmt.Errorf("dialects[%d] (%s): %w", i, name, err)
		}
		for _, method := range m.dialect.Methods {
			if t.own[method] != nil {
				return nil, fmt.Errorf("dialects[%d] (%s): methods: %s is described twice", i, name, method)
			}
			t.own[method] = m
		}
	}
	return t, nil
}

// With returns a table that has more of the user's dialects, for the methods that the
// user's own in t do not name.
func (t *Table) With(more ...dialect.Dialect) (*Table, error) {
	all, err := NewTable(more...)
	if err != nil {
		return nil, err
	}
	maps.Copy(all.own, t.own)
	return all, nil
}

// Lookup returns how to read the messages of a full method name. For a method
// that has no dialect it returns one that finds fields by their usual names.
// O(1), no allocation.
func (t *Table) Lookup(method string) *Method {
	known := builtinMethods()
	return cmp.Or(t.own[method], known[method], known[""])
}

// A Method reads the messages of the methods of one dialect. Safe for concurrent
// use.
type Method struct {
	dialect  dialect.Dialect
	request  fields
	turn     fields // in a chat turn of the request
	medium   fields // in a message of it that holds media
	response fields
	rank     protowire.Number // 0 = the request has no field for it

	zeroIsAbsent bool // cached tokens stand in a number, whose zero is not encoded, not in a map
}

// DeferStream reports whether a client or bidirectional stream is to be opened
// with its first message.
func (m *Method) DeferStream() bool { return m != nil && m.dialect.DeferStream }

// HasPrompt reports whether a request may carry a prompt. Of a method without a
// dialect is unknown, so it may.
func (m *Method) HasPrompt() bool {
	return m != nil && slices.ContainsFunc([]slot{slotPrompt, slotTokens, slotTurn, slotJSON}, m.request.has)
}

// HasUsage reports whether responses may carry usage.
func (m *Method) HasUsage() bool {
	return m != nil && slices.ContainsFunc(
		[]slot{slotUsagePrompt, slotUsageOutput, slotUsageCached, slotUsageDelta, slotUsageJSON}, m.response.has)
}

// newMethod compiles a dialect, which may be like one of those that are known.
func newMethod(d dialect.Dialect, known map[string]*Method) (*Method, error) {
	if d.Like != "" {
		base := known[d.Like]
		if base == nil {
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
	return compile(d)
}

func compile(d dialect.Dialect) (*Method, error) {
	m := &Method{dialect: d}
	messages, media := d.Messages, d.Media
	if messages == nil {
		messages = &dialect.Messages{}
	}
	if media == nil {
		media = &dialect.Media{}
	}
	for _, p := range []struct {
		in   *fields
		name string
		slot slot
		path dialect.Path
	}{
		{&m.request, "request_id", slotRequestID, d.RequestID},
		{&m.request, "session", slotSession, d.Session},
		{&m.request, "model", slotModel, d.Model},
		{&m.request, "adapter", slotAdapter, d.Adapter},
		{&m.request, "cache_salt", slotCacheSalt, d.CacheSalt},
		{&m.request, "rank", slotRank, d.Rank},
		{&m.request, "prompt", slotPrompt, d.Prompt},
		{&m.request, "tokens", slotTokens, d.Tokens},
		{&m.request, "json_body", slotJSON, d.JSONBody},
		{&m.request, "messages.path", slotTurn, messages.Path},
		{&m.turn, "messages.role", slotRole, messages.Role},
		{&m.turn, "messages.content", slotContent, messages.Content},
		{&m.request, "media.path", slotMedia, media.Path},
		{&m.medium, "media.id", slotMediaID, media.ID},
		{&m.medium, "media.offset", slotMediaOffset, media.Offset},
		{&m.response, "usage.prompt", slotUsagePrompt, d.Usage.Prompt},
		{&m.response, "usage.output", slotUsageOutput, d.Usage.Output},
		{&m.response, "usage.cached", slotUsageCached, d.Usage.Cached},
		{&m.response, "usage.output_delta", slotUsageDelta, d.Usage.OutputDelta},
		{&m.response, "usage.json", slotUsageJSON, d.Usage.JSON},
	} {
		if err := p.in.add(p.name, p.slot, p.path); err != nil {
			return nil, err
		}
	}
	if alts := m.request.paths[slotRank]; len(alts) > 0 {
		st := alts[0][0]
		if len(alts) > 1 || len(alts[0]) > 1 || st != (step{num: st.num}) {
			return nil, fmt.Errorf("rank: %q: want the number of one field of the request", d.Rank)
		}
		m.rank = st.num
	}
	cached := m.response.paths[slotUsageCached]
	m.zeroIsAbsent = len(cached) > 0 && cached[0][0].key == ""
	return m, nil
}

// checkLinked checks the paths of a dialect against the messages of those of its methods whose generated code the
// program links: each path must lead to something that can be read.
func checkLinked(d dialect.Dialect, methods []string) error {
	own, err := compile(d) // without what it takes over from the one that it is like
	if err != nil {
		return err
	}
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
		for _, check := range []error{
			own.request.check(md.Input()), own.turn.check(md.Input(), own.request.paths[slotTurn]...),
			own.medium.check(md.Input(), own.request.paths[slotMedia]...), own.response.check(md.Output()),
		} {
			if check != nil {
				return check
			}
		}
	}
	return nil
}
