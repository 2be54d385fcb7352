package jinja

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
)

// Bounds of one chat. What is larger is text without tokens.
const (
	maxSteps  = 20_000_000 // expressions and statements, with what walks over lists and texts costs
	dialSteps = 500_000    // of a chat at dial: some hundred times as many as templates of models take
	maxBytes  = 256 << 20  // texts and lists that are made, in all
	maxCalls  = 400        // expressions, statements and macros inside each other
	pollEvery = 1 << 12    // steps between two looks at the deadline
	maxRange  = 100_000    // of Jinja2's sandbox
	maxSource = 1 << 20    // bytes of a template
)

var (
	errSteps = errors.New("it takes too many steps")
	errBytes = fmt.Errorf("it makes more than %d MiB of text", maxBytes>>20)
	errDepth = errors.New("it is nested too deep")
	errBreak = errors.New("break")
	errNext  = errors.New("continue")
)

// A machine runs a template once.
type machine struct {
	ctx   context.Context
	steps int
	poll  int // steps until the deadline is looked at
	bytes int
	calls int // expressions, statements and macros that are under way
	out   *strings.Builder
}

func newMachine(ctx context.Context, steps int) *machine {
	return &machine{ctx: ctx, steps: steps, bytes: maxBytes, out: new(strings.Builder)}
}

// charge takes n steps.
func (m *machine) charge(n int) error {
	if m.steps -= n; m.steps < 0 {
		return errSteps
	}
	if m.poll -= n; m.poll < 0 {
		m.poll = pollEvery
		return m.ctx.Err()
	}
	return nil
}

// grow takes n bytes.
func (m *machine) grow(n int) error {
	if m.bytes -= n; n < 0 || m.bytes < 0 {
		return errBytes
	}
	return m.charge(n / 64)
}

// deeper begins what may contain more of itself; m.calls-- ends it.
func (m *machine) deeper() error {
	if m.calls++; m.calls > maxCalls {
		return errDepth
	}
	return m.charge(1)
}

// A scope has the names that are set in a loop or a macro.
type scope struct {
	parent *scope
	names  []binding // few, so that no map is needed
}

type binding struct {
	name  string
	value value
}

func (s *scope) inner() *scope { return &scope{parent: s} }

func (s *scope) set(name string, v value) {
	for i := range s.names {
		if s.names[i].name == name {
			s.names[i].value = v
			return
		}
	}
	s.names = append(s.names, binding{name, v})
}

type (
	statement interface {
		run(m *machine, s *scope) error
	}
	expression interface {
		eval(m *machine, s *scope) (value, error)
	}
)

// eval returns the value of an expression; run runs statements.
func (m *machine) eval(e expression, s *scope) (value, error) {
	err := m.deeper()
	defer func() { m.calls-- }()
	if err != nil {
		return nil, err
	}
	return e.eval(m, s)
}

func (m *machine) run(all []statement, s *scope) error {
	err := m.deeper()
	defer func() { m.calls-- }()
	for i := 0; err == nil && i < len(all); i++ {
		if err = m.charge(1); err == nil {
			err = all[i].run(m, s)
		}
	}
	return err
}

func (m *machine) write(s string) error {
	m.out.WriteString(s)
	return m.grow(len(s))
}

// capture returns what statements write.
func (m *machine) capture(all []statement, s *scope) (string, error) {
	before := m.out
	m.out = new(strings.Builder)
	err := m.run(all, s)
	text := m.out.String()
	m.out = before
	return text, err
}

type (
	text    string
	output  struct{ of expression }
	printed []expression
	branch  struct {
		test expression
		body []statement
	}
	conditional struct {
		branches  []branch
		otherwise []statement
	}
	loop struct {
		names           []string
		tuple           bool
		over, test      expression
		body, otherwise []statement
	}
	set struct {
		names     []string
		tuple     bool
		attribute string // of a namespace
		value     expression
		body      []statement
		block     bool
	}
	jump     bool // true = break
	filtered struct {
		filter expression
		body   []statement
	}
	generation struct{ body []statement }
	callBlock  struct {
		call *called
		body *macro
	}
	macro struct {
		name     string
		names    []string
		defaults []expression
		body     []statement
		caller   bool // it calls its caller
	}
	closure struct {
		macro *macro
		scope *scope
	}
)

func (t text) run(m *machine, _ *scope) error { return m.write(string(t)) }

func (o *output) run(m *machine, s *scope) error {
	v, err := m.eval(o.of, s)
	if err != nil {
		return err
	}
	text, err := m.str(v)
	if err != nil {
		return err
	}
	return m.write(text)
}

func (p printed) run(m *machine, s *scope) error {
	for _, e := range p {
		if err := (&output{e}).run(m, s); err != nil {
			return err
		}
	}
	return nil
}

func (c *conditional) run(m *machine, s *scope) error {
	for _, b := range c.branches {
		v, err := m.eval(b.test, s)
		if err != nil {
			return err
		}
		if truth(v) {
			return m.run(b.body, s)
		}
	}
	return m.run(c.otherwise, s)
}

// assign sets the names to a value or, as a tuple, to its parts.
func (m *machine) assign(s *scope, names []string, tuple bool, v value) error {
	if !tuple {
		s.set(names[0], v)
		return nil
	}
	parts, err := m.each(v)
	if err == nil && len(parts) != len(names) {
		err = fmt.Errorf("%d values for %d names", len(parts), len(names))
	}
	if err != nil {
		return err
	}
	for i, name := range names {
		s.set(name, parts[i])
	}
	return nil
}

// An iteration is the variable loop.
type iteration struct {
	items   []value
	at      int
	changed []value // what was last given to changed
}

func (l *loop) run(m *machine, s *scope) error {
	v, err := m.eval(l.over, s)
	if err != nil {
		return err
	}
	items, err := m.each(v)
	if err != nil {
		return err
	}
	if l.test != nil {
		var left []value
		for _, x := range items {
			inner := s.inner()
			inner.set("loop", undefined{"loop"})
			if err := m.assign(inner, l.names, l.tuple, x); err != nil {
				return err
			}
			is, err := m.eval(l.test, inner)
			if err != nil {
				return err
			}
			if truth(is) {
				left = append(left, x)
			}
		}
		items = left
	}
	if len(items) == 0 {
		return m.run(l.otherwise, s.inner())
	}
	state := &iteration{items: items}
	for i, x := range items {
		state.at = i
		inner := s.inner()
		if err := m.assign(inner, l.names, l.tuple, x); err != nil {
			return err
		}
		inner.set("loop", state)
		err := m.run(l.body, inner)
		if errors.Is(err, errBreak) {
			break
		}
		if err != nil && !errors.Is(err, errNext) {
			return err
		}
	}
	return nil
}

func (a *set) run(m *machine, s *scope) (err error) {
	inner := s
	if a.block {
		inner = s.inner()
		text, err := m.capture(a.body, inner)
		if err != nil {
			return err
		}
		inner.set(string(captured), text)
	}
	v, err := m.eval(a.value, inner)
	if err != nil {
		return err
	}
	if a.attribute == "" {
		return m.assign(s, a.names, a.tuple, v)
	}
	n, is := s.look(a.names[0]).(*namespace)
	if !is {
		return fmt.Errorf("%s is no namespace", a.names[0])
	}
	n.put(a.attribute, v)
	return m.grow(32)
}

func (j jump) run(*machine, *scope) error {
	if j {
		return errBreak
	}
	return errNext
}

func (f *filtered) run(m *machine, s *scope) error {
	inner := s.inner()
	text, err := m.capture(f.body, inner)
	if err != nil {
		return err
	}
	inner.set(string(captured), text)
	return (&output{f.filter}).run(m, inner)
}

func (g *generation) run(m *machine, s *scope) error { return m.run(g.body, s.inner()) }

func (d *macro) run(_ *machine, s *scope) error {
	s.set(d.name, &closure{d, s})
	return nil
}

func (c *callBlock) run(m *machine, s *scope) error {
	v, err := c.call.do(m, s, &closure{c.body, s})
	if err != nil {
		return err
	}
	text, err := m.str(v)
	if err != nil {
		return err
	}
	return m.write(text)
}

// call runs a macro.
func (c *closure) call(m *machine, g given) (value, error) {
	inner := c.scope.inner()
	if c.macro.caller {
		inner.set("caller", undefined{"caller"})
	}
	for i, name := range g.names {
		if name == "caller" {
			if !c.macro.caller {
				return nil, fmt.Errorf("the macro %s takes no caller", c.macro.name)
			}
			inner.set(name, g.named[i])
			g.names, g.named = g.names[:i:i], g.named[:i:i] // it is the last
		}
	}
	args, err := g.bind(c.macro.names...)
	if err != nil {
		return nil, err
	}
	for i, name := range c.macro.names {
		v := or(args[i], undefined{name})
		if _, absent := args[i].(missing); absent && c.macro.defaults[i] != nil {
			if v, err = m.eval(c.macro.defaults[i], inner); err != nil {
				return nil, err
			}
		}
		inner.set(name, v)
	}
	text, err := m.capture(c.macro.body, inner)
	return text, err
}

type (
	constant struct{ value value }
	variable string
	sequence struct {
		items []expression
		kind  listKind
	}
	dictionary struct{ keys, values []expression }
	choice     struct{ test, yes, no expression }
	logical    struct {
		a, b expression
		or   bool
	}
	negation   struct{ of expression }
	comparison struct {
		first expression
		ops   []string
		rest  []expression
	}
	arithmetic struct {
		op   string
		a, b expression
	}
	concat []expression
	signed struct {
		of    expression
		minus bool
	}
	attribute struct {
		of   expression
		name string
	}
	item      struct{ of, index expression }
	slice     struct{ from, to, step expression }
	arguments struct {
		plain []expression
		names []string
		named []expression
	}
	called struct {
		of expression
		arguments
	}
	filterCall struct {
		of   expression
		name string
		arguments
	}
	testCall struct {
		of   expression
		name string
		arguments
	}
)

func (c constant) eval(*machine, *scope) (value, error) { return c.value, nil }

func (s *scope) look(name string) value {
	for ; s != nil; s = s.parent {
		for i := range s.names {
			if s.names[i].name == name {
				return s.names[i].value
			}
		}
	}
	if f := globals[name]; f != nil {
		return &method{do: f}
	}
	return undefined{name}
}

func (v variable) eval(_ *machine, s *scope) (value, error) { return s.look(string(v)), nil }

func (m *machine) all(of []expression, s *scope) ([]value, error) {
	items := make([]value, len(of))
	for i, e := range of {
		var err error
		if items[i], err = m.eval(e, s); err != nil {
			return nil, err
		}
	}
	return items, nil
}

func (q *sequence) eval(m *machine, s *scope) (value, error) {
	items, err := m.all(q.items, s)
	if err != nil {
		return nil, err
	}
	return m.list(q.kind, items)
}

func (x *dictionary) eval(m *machine, s *scope) (value, error) {
	d := &dict{depth: 1}
	for i := range x.keys {
		k, err := m.eval(x.keys[i], s)
		if err != nil {
			return nil, err
		}
		key, is := k.(string)
		if !is {
			return nil, unsupported("a key that is no text")
		}
		v, err := m.eval(x.values[i], s)
		if err != nil {
			return nil, err
		}
		d.put(key, v)
	}
	return d, m.fits(d.depth, 2*len(d.keys))
}

func (c *choice) eval(m *machine, s *scope) (value, error) {
	v, err := m.eval(c.test, s)
	switch {
	case err != nil:
		return nil, err
	case truth(v):
		return m.eval(c.yes, s)
	case c.no == nil:
		return undefined{"an if without else"}, nil
	}
	return m.eval(c.no, s)
}

func (l *logical) eval(m *machine, s *scope) (value, error) {
	v, err := m.eval(l.a, s)
	if err != nil || truth(v) == l.or {
		return v, err
	}
	return m.eval(l.b, s)
}

func (n *negation) eval(m *machine, s *scope) (value, error) {
	v, err := m.eval(n.of, s)
	return !truth(v), err
}

func (c *comparison) eval(m *machine, s *scope) (value, error) {
	a, err := m.eval(c.first, s)
	if err != nil {
		return nil, err
	}
	for i, op := range c.ops {
		b, err := m.eval(c.rest[i], s)
		if err != nil {
			return nil, err
		}
		holds, err := m.holds(op, a, b)
		if !holds || err != nil {
			return false, err
		}
		a = b
	}
	return true, nil
}

// holds compares two values.
func (m *machine) holds(op string, a, b value) (is bool, err error) {
	for _, v := range []value{a, b} {
		if _, marked := v.(markup); marked {
			return false, unsupported("a comparison with a safe text")
		}
	}
	c := 0
	switch op {
	case "==":
		return m.equal(a, b)
	case "!=":
		is, err = m.equal(a, b)
		return !is, err
	case "in":
		return m.contains(b, a)
	case "not in":
		is, err = m.contains(b, a)
		return !is, err
	}
	if c, err = m.compare(a, b); err != nil {
		return false, err
	}
	switch op {
	case "<":
		return c < 0, nil
	case "<=":
		return c <= 0, nil
	case ">":
		return c > 0, nil
	}
	return c >= 0, nil
}

func (c concat) eval(m *machine, s *scope) (value, error) {
	var b strings.Builder
	for _, e := range c {
		v, err := m.eval(e, s)
		if err != nil {
			return nil, err
		}
		if _, is := v.(markup); is {
			return nil, unsupported("a sum with a safe text")
		}
		text, err := m.str(v)
		if err != nil {
			return nil, err
		}
		b.WriteString(text)
		if err := m.grow(len(text)); err != nil {
			return nil, err
		}
	}
	return b.String(), nil
}

func (x *signed) eval(m *machine, s *scope) (value, error) {
	v, err := m.eval(x.of, s)
	if err != nil {
		return nil, err
	}
	n, f, whole, ok := number(v)
	switch {
	case !ok:
		return nil, defined(v, mistake("the sign", v))
	case whole && n == math.MinInt64 && x.minus:
		return nil, unsupported("a number of more than 64 bits")
	case whole && x.minus:
		return -n, nil
	case whole:
		return n, nil
	case x.minus:
		return -f, nil
	}
	return f, nil
}

// defined returns the error of a value that is undefined, or err.
func defined(v value, err error) error {
	if u, is := v.(undefined); is {
		return u.use()
	}
	return err
}

func (x *attribute) eval(m *machine, s *scope) (value, error) {
	v, err := m.eval(x.of, s)
	if err != nil {
		return nil, err
	}
	return m.attribute(v, x.name)
}

func (x *item) eval(m *machine, s *scope) (value, error) {
	v, err := m.eval(x.of, s)
	if err != nil {
		return nil, err
	}
	if cut, is := x.index.(*slice); is {
		return cut.of(m, s, v)
	}
	index, err := m.eval(x.index, s)
	if err != nil {
		return nil, err
	}
	part, err := m.item(v, index)
	if c, is := x.index.(constant); is && err == nil {
		if _, is := part.(undefined); is {
			return undefined{fmt.Sprint(c.value)}, nil
		}
	}
	return part, err
}

// eval is not called: a slice stands in an item.
func (c *slice) eval(*machine, *scope) (value, error) { return nil, unsupported("a slice alone") }

// of returns a part of a value.
func (c *slice) of(m *machine, s *scope, v value) (value, error) {
	var bounds [3]*int64
	for i, e := range []expression{c.from, c.to, c.step} {
		if e == nil {
			continue
		}
		x, err := m.eval(e, s)
		if err != nil {
			return nil, err
		}
		n, _, whole, ok := number(x)
		switch {
		case x == nil:
		case !ok || !whole:
			return nil, mistake("a bound", x)
		default:
			bounds[i] = &n
		}
	}
	if bounds[2] != nil && *bounds[2] == 0 {
		return nil, errors.New("the step of a slice is 0")
	}
	switch v := v.(type) {
	case string:
		chars, err := m.each(v)
		if err != nil {
			return nil, err
		}
		var b strings.Builder
		for _, x := range cut(chars, bounds) {
			b.WriteString(x.(string))
		}
		return b.String(), m.grow(b.Len())
	case *list:
		if v.kind == kindView {
			return nil, mistake("a slice", v)
		}
		if v.kind == kindRange {
			return nil, unsupported("a slice of a range")
		}
		return m.list(v.kind, cut(v.items, bounds))
	case undefined:
		return nil, v.use()
	case markup, *namespace, *iteration:
		return nil, unsupported("a slice of a " + typeName(v))
	}
	return nil, mistake("a slice", v)
}

// cut returns a slice as Python does.
func cut(all []value, bounds [3]*int64) []value {
	n, step := int64(len(all)), int64(1)
	if bounds[2] != nil {
		step = max(*bounds[2], -n-1)
	}
	low, high := int64(0), n
	if step < 0 {
		low, high = -1, n-1
	}
	at := func(bound *int64, otherwise int64) int64 {
		switch {
		case bound == nil:
			return otherwise
		case *bound < 0:
			return max(*bound+n, low)
		}
		return min(*bound, high)
	}
	from, to := at(bounds[0], low), at(bounds[1], high)
	if step < 0 {
		from, to = at(bounds[0], high), at(bounds[1], low)
	}
	if step == 1 {
		return all[from:max(from, to)]
	}
	var part []value
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		part = append(part, all[i])
		if step > n {
			break
		}
	}
	return part
}

// given evaluates arguments.
func (m *machine) given(a arguments, s *scope) (g given, err error) {
	if g.plain, err = m.all(a.plain, s); err != nil {
		return g, err
	}
	g.names = a.names
	g.named, err = m.all(a.named, s)
	return g, err
}

func (c *called) eval(m *machine, s *scope) (value, error) { return c.do(m, s, nil) }

// do calls, with a caller or without one.
func (c *called) do(m *machine, s *scope, caller *closure) (value, error) {
	f, err := m.eval(c.of, s)
	if err != nil {
		return nil, err
	}
	g, err := m.given(c.arguments, s)
	if err != nil {
		return nil, err
	}
	switch f := f.(type) {
	case *closure:
		if caller != nil {
			g.names, g.named = append(g.names[:len(g.names):len(g.names)], "caller"), append(g.named, caller)
		}
		return f.call(m, g)
	case *method:
		if caller != nil {
			return nil, unsupported("a call of a function with a body")
		}
		return f.do(m, f.of, g)
	case undefined:
		return nil, f.use()
	}
	return nil, mistake("a call", f)
}

func (f *filterCall) eval(m *machine, s *scope) (value, error) {
	v, err := m.eval(f.of, s)
	if err != nil {
		return nil, err
	}
	g, err := m.given(f.arguments, s)
	if err != nil {
		return nil, err
	}
	return m.filter(f.name, v, g)
}

func (m *machine) filter(name string, v value, g given) (value, error) {
	if _, is := v.(markup); is && name != "safe" && name != "string" {
		return nil, unsupported("a filter of a safe text")
	}
	for _, x := range append(g.plain[:len(g.plain):len(g.plain)], g.named...) {
		if _, is := x.(markup); is {
			return nil, unsupported("a filter with a safe text")
		}
	}
	return filters[name](m, v, g)
}

func (t *testCall) eval(m *machine, s *scope) (value, error) {
	v, err := m.eval(t.of, s)
	if err != nil {
		return nil, err
	}
	g, err := m.given(t.arguments, s)
	if err != nil {
		return nil, err
	}
	return m.test(t.name, v, g)
}

func (m *machine) test(name string, v value, g given) (bool, error) {
	if len(g.names) > 0 {
		return false, unsupported("a test with named arguments")
	}
	t := tests[name]
	if t.arguments != len(g.plain) {
		return false, fmt.Errorf("the test %s has %d arguments", name, len(g.plain))
	}
	return t.is(m, v, g.plain)
}
