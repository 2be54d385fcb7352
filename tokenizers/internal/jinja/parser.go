package jinja

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxNesting bounds how deep a template's statements and expressions are nested.
const maxNesting = 100

// maxNamed bounds the parameters of a macro and the named arguments of a call.
const maxNamed = 250

// parser reads the grammar of Jinja2. What it does not know it refuses, naming it.
type parser struct {
	tokens  []token
	at      int
	nesting int
	loops   int      // around the place: for break and continue
	macros  []*macro // around the place
}

// parse returns the statements of a template.
func parse(src string) (body []statement, err error) {
	p := &parser{}
	if p.tokens, err = lex(src); err != nil {
		return nil, err
	}
	err = caught(func() { body = p.statements() })
	return body, err
}

// failure is how the parser leaves its own recursion.
type failure struct{ error }

// caught turns a failure of the parser into an error.
func caught(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			own, is := r.(failure)
			if !is {
				panic(r)
			}
			err = own.error
		}
	}()
	f()
	return nil
}

func (p *parser) fail(format string, values ...any) {
	panic(failure{fmt.Errorf("line %d: %s", p.now().line, fmt.Sprintf(format, values...))})
}

func (p *parser) refuse(what string) {
	panic(failure{fmt.Errorf("line %d: %w", p.now().line, unsupported(what))})
}

// enter goes one level deeper, until leave.
func (p *parser) enter() {
	if p.nesting++; p.nesting > maxNesting {
		p.refuse(fmt.Sprintf("a nesting of more than %d levels", maxNesting))
	}
}

func (p *parser) leave() { p.nesting-- }

func (p *parser) now() token { return p.tokens[p.at] }

func (p *parser) ahead() token { return p.tokens[min(p.at+1, len(p.tokens)-1)] }

func (p *parser) take() token {
	t := p.now()
	if t.kind != kindEOF {
		p.at++
	}
	return t
}

func (p *parser) is(k kind, text string) bool { return p.now().kind == k && p.now().text == text }

// op and word take what stands there if it is that.
func (p *parser) op(text string) bool {
	is := p.is(kindOperator, text)
	if is {
		p.at++
	}
	return is
}

func (p *parser) word(text string) bool {
	is := p.is(kindName, text)
	if is {
		p.at++
	}
	return is
}

func (p *parser) want(k kind, text string) {
	if !p.is(k, text) {
		p.fail("%q is expected where %q stands", text, p.now().text)
	}
	p.at++
}

func (p *parser) name() string {
	if p.now().kind != kindName {
		p.fail("a name is expected where %q stands", p.now().text)
	}
	return p.take().text
}

func (p *parser) close() {
	if p.now().kind != kindCloseBlock {
		p.fail("unexpected %q", p.now().text)
	}
	p.at++
}

// statements reads up to a block that begins with one of the names, and takes the name.
func (p *parser) statements(ends ...string) (all []statement) {
	p.enter()
	defer p.leave()
	for {
		switch t := p.take(); t.kind {
		case kindEOF:
			if len(ends) > 0 {
				p.fail("%s is missing", strings.Join(ends, " or "))
			}
			return all
		case kindText:
			all = append(all, text(t.text))
		case kindOpenVariable:
			all = append(all, &output{p.tuple(p.expression, false)})
			if p.now().kind != kindCloseVariable {
				p.fail("unexpected %q", p.now().text)
			}
			p.at++
		case kindOpenBlock:
			if t := p.now(); t.kind == kindName && slices.Contains(ends, t.text) {
				return all
			}
			all = append(all, p.statement())
		}
	}
}

// body reads the statements of a block from the end of its tag on, up to the end of the tag with that name.
func (p *parser) body(end string) []statement {
	p.op(":")
	p.close()
	all := p.statements(end)
	p.at++
	p.close()
	return all
}

func (p *parser) statement() statement {
	switch name := p.name(); name {
	case "if":
		return p.conditional()
	case "for":
		return p.loop()
	case "set":
		return p.set()
	case "macro":
		return p.macro()
	case "call":
		return p.call()
	case "filter":
		f := p.filter(captured)
		for p.op("|") {
			f = p.filter(f)
		}
		return &filtered{f, p.inner(nil, "endfilter")}
	case "generation":
		return &generation{p.inner(nil, "endgeneration")}
	case "print":
		var all printed
		for p.now().kind != kindCloseBlock {
			if len(all) > 0 {
				p.want(kindOperator, ",")
			}
			all = append(all, p.expression())
		}
		p.at++
		return all
	case "break", "continue":
		if p.loops == 0 {
			p.refuse(name + " outside of a loop")
		}
		p.close()
		return jump(name == "break")
	default:
		p.refuse("the statement " + name)
		return nil
	}
}

func (p *parser) conditional() statement {
	c := &conditional{}
	for {
		test := p.tuple(p.or, false)
		p.op(":")
		p.close()
		body := p.statements("elif", "else", "endif")
		c.branches = append(c.branches, branch{test, body})
		switch p.take().text {
		case "elif":
		case "else":
			c.otherwise = p.body("endif")
			return c
		default:
			p.close()
			return c
		}
	}
}

// targets reads the names that are assigned.
func (p *parser) targets() (names []string, tuple bool) {
	brackets := p.op("(")
	for {
		name := p.name()
		if slices.Contains([]string{"true", "false", "none", "True", "False", "None", "loop"}, name) {
			p.refuse("an assignment to " + name)
		}
		if names = append(names, name); !p.op(",") {
			break
		}
		if tuple = true; p.now().kind != kindName || p.is(kindName, "in") {
			break
		}
	}
	if brackets {
		p.want(kindOperator, ")")
	}
	return names, tuple
}

func (p *parser) loop() statement {
	l := &loop{}
	l.names, l.tuple = p.targets()
	p.want(kindName, "in")
	l.over = p.tuple(p.or, false)
	if p.word("if") {
		l.test = p.expression()
	}
	if p.is(kindName, "recursive") {
		p.refuse("a recursive loop")
	}
	p.op(":")
	p.close()
	p.loops++
	l.body = p.statements("endfor", "else")
	p.loops--
	if p.take().text == "else" {
		l.otherwise = p.body("endfor")
	} else {
		p.close()
	}
	return l
}

func (p *parser) set() statement {
	s := &set{}
	if p.ahead().kind == kindOperator && p.ahead().text == "." {
		s.names = []string{p.name()}
		p.at++
		s.attribute = p.name()
	} else {
		s.names, s.tuple = p.targets()
	}
	if p.op("=") {
		s.value = p.tuple(p.expression, false)
		p.close()
		return s
	}
	for s.value = captured; p.op("|"); {
		s.value = p.filter(s.value)
	}
	s.body, s.block = p.inner(nil, "endset"), true
	return s
}

// captured is the text of a block, for filters of it.
const captured = variable("text of the block")

// inner reads a body that no loop around it reaches, as that of a macro.
func (p *parser) inner(m *macro, end string) []statement {
	loops := p.loops
	p.loops = 0
	if m != nil {
		p.macros = append(p.macros, m)
	}
	body := p.body(end)
	if p.loops = loops; m != nil {
		p.macros = p.macros[:len(p.macros)-1]
	}
	return body
}

// signature reads the parameters of a macro.
func (p *parser) signature(m *macro) {
	p.want(kindOperator, "(")
	for !p.op(")") {
		if len(m.names) > 0 {
			p.want(kindOperator, ",")
		}
		name := p.name()
		if name == "caller" || len(m.names) == maxNamed || slices.Contains(m.names, name) {
			p.refuse("the parameter " + name)
		}
		var value expression
		if p.op("=") {
			value = p.expression()
		} else if len(m.defaults) > 0 && m.defaults[len(m.defaults)-1] != nil {
			p.fail("the parameter %s has no default but the one ahead of it has", name)
		}
		m.names, m.defaults = append(m.names, name), append(m.defaults, value)
	}
}

func (p *parser) macro() statement {
	m := &macro{name: p.name()}
	p.signature(m)
	m.body = p.inner(m, "endmacro")
	return m
}

func (p *parser) call() statement {
	m := &macro{name: "caller"}
	if p.is(kindOperator, "(") {
		p.signature(m)
	}
	called, is := p.expression().(*called)
	if !is {
		p.fail("a call is expected")
	}
	m.body = p.inner(m, "endcall")
	return &callBlock{called, m}
}

// tuple reads expressions up to the last one without a comma behind it: one, or several as a tuple.
func (p *parser) tuple(read func() expression, brackets bool) expression {
	var all []expression
	tuple := false
	for {
		t := p.now()
		end := t.kind == kindCloseVariable || t.kind == kindCloseBlock || t.kind == kindOperator && t.text == ")"
		if end {
			break
		}
		if all = append(all, read()); !p.op(",") {
			break
		}
		tuple = true
	}
	if !tuple && len(all) == 1 {
		return all[0]
	}
	if !tuple && !brackets {
		p.fail("an expression is missing")
	}
	return &sequence{all, kindTuple}
}

func (p *parser) expression() expression {
	p.enter()
	defer p.leave()
	e := p.or()
	for p.word("if") {
		c := &choice{test: p.or(), yes: e}
		if p.word("else") {
			c.no = p.expression()
		}
		e = c
	}
	return e
}

func (p *parser) or() expression {
	e := p.and()
	for p.word("or") {
		e = &logical{e, p.and(), true}
	}
	return e
}

func (p *parser) and() expression {
	e := p.not()
	for p.word("and") {
		e = &logical{e, p.not(), false}
	}
	return e
}

func (p *parser) not() expression {
	if !p.word("not") {
		return p.compare()
	}
	p.enter()
	defer p.leave()
	return &negation{p.not()}
}

func (p *parser) compare() expression {
	first := p.sum()
	var c comparison
	for {
		op := ""
		switch t := p.now(); {
		case t.kind == kindOperator && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text),
			t.kind == kindName && t.text == "in":
			op = p.take().text
		case t.kind == kindName && t.text == "not" && p.ahead().kind == kindName && p.ahead().text == "in":
			p.at += 2
			op = "not in"
		case len(c.ops) == 0:
			return first
		default:
			c.first = first
			return &c
		}
		c.ops, c.rest = append(c.ops, op), append(c.rest, p.sum())
	}
}

// binary reads operators of one level, from the left.
func (p *parser) binary(read func() expression, ops ...string) expression {
	e := read()
	for p.now().kind == kindOperator && slices.Contains(ops, p.now().text) {
		op := p.take().text
		e = &arithmetic{op, e, read()}
	}
	return e
}

func (p *parser) sum() expression { return p.binary(p.concat, "+", "-") }

func (p *parser) concat() expression {
	e := p.product()
	if !p.is(kindOperator, "~") {
		return e
	}
	all := concat{e}
	for p.op("~") {
		all = append(all, p.product())
	}
	return all
}

func (p *parser) product() expression { return p.binary(p.power, "*", "/", "//", "%") }

func (p *parser) power() expression {
	e := p.unary(true)
	if p.is(kindOperator, "**") {
		p.refuse("the operator **")
	}
	return e
}

func (p *parser) unary(filters bool) (e expression) {
	p.enter()
	defer p.leave()
	switch {
	case p.op("-"):
		e = &signed{p.unary(false), true}
	case p.op("+"):
		e = &signed{p.unary(false), false}
	default:
		e = p.primary()
	}
	e = p.postfix(e)
	for filters {
		switch {
		case p.op("|"):
			e = p.filter(e)
		case p.word("is"):
			e = p.test(e)
		case p.is(kindOperator, "("):
			e = &called{e, p.arguments()}
		default:
			return e
		}
	}
	return e
}

func (p *parser) primary() expression {
	t := p.take()
	switch {
	case t.kind == kindName:
		return p.variable(t.text)
	case t.kind == kindString:
		all := []string{t.text}
		for p.now().kind == kindString {
			all = append(all, p.take().text)
		}
		return constant{strings.Join(all, "")}
	case t.kind == kindInt:
		n, err := strconv.ParseInt(t.text, 10, 64)
		if err != nil {
			p.refuse("the number " + t.text)
		}
		return constant{n}
	case t.kind == kindFloat:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			p.refuse("the number " + t.text)
		}
		return constant{f}
	case t.kind == kindOperator && t.text == "(":
		e := p.tuple(p.expression, true)
		p.want(kindOperator, ")")
		return e
	case t.kind == kindOperator && t.text == "[":
		all := &sequence{kind: kindList}
		for first := true; !p.op("]"); first = false {
			if !first {
				if p.want(kindOperator, ","); p.op("]") {
					break
				}
			}
			all.items = append(all.items, p.expression())
		}
		return all
	case t.kind == kindOperator && t.text == "{":
		d := &dictionary{}
		for first := true; !p.op("}"); first = false {
			if !first {
				if p.want(kindOperator, ","); p.op("}") {
					break
				}
			}
			d.keys = append(d.keys, p.expression())
			p.want(kindOperator, ":")
			d.values = append(d.values, p.expression())
		}
		return d
	}
	p.at = max(p.at-1, 0)
	p.fail("unexpected %q", t.text)
	return nil
}

// variable returns what a name stands for.
func (p *parser) variable(name string) expression {
	switch name {
	case "true", "True":
		return constant{true}
	case "false", "False":
		return constant{false}
	case "none", "None":
		return constant{nil}
	case "lipsum", "cycler", "joiner", "self", "super":
		p.refuse("the name " + name)
	case "varargs", "kwargs":
		if len(p.macros) > 0 {
			p.refuse("the name " + name)
		}
	case "caller":
		for _, m := range p.macros {
			if m.name == "caller" {
				p.refuse("caller in a call")
			}
			m.caller = true
		}
	}
	return variable(name)
}

func (p *parser) postfix(e expression) expression {
	for {
		switch {
		case p.op("."):
			if t := p.now(); t.kind == kindInt {
				e = &item{e, p.primary()}
				continue
			}
			name := p.name()
			if strings.HasPrefix(name, "_") {
				p.refuse("the attribute " + name)
			}
			if p.is(kindOperator, "(") && refused(name) {
				p.refuse("the method " + name)
			}
			e = &attribute{e, name}
		case p.op("["):
			index := p.subscript()
			if !p.op("]") {
				p.refuse("a subscript of several values")
			}
			e = &item{e, index}
		case p.is(kindOperator, "("):
			e = &called{e, p.arguments()}
		default:
			return e
		}
	}
}

// subscript reads an index or a slice.
func (p *parser) subscript() expression {
	s := &slice{}
	part := func() expression {
		if p.is(kindOperator, ":") || p.is(kindOperator, "]") {
			return nil
		}
		return p.expression()
	}
	if s.from = part(); !p.op(":") {
		if s.from == nil {
			p.fail("a subscript is empty")
		}
		return s.from
	}
	if s.to = part(); p.op(":") {
		s.step = part()
	}
	return s
}

func (p *parser) arguments() (a arguments) {
	p.want(kindOperator, "(")
	for first := true; !p.op(")"); first = false {
		if !first {
			if p.want(kindOperator, ","); p.op(")") {
				break
			}
		}
		switch {
		case p.is(kindOperator, "*"), p.is(kindOperator, "**"):
			p.refuse("arguments from a list")
		case p.now().kind == kindName && p.ahead().kind == kindOperator && p.ahead().text == "=":
			name := p.name()
			if p.at++; name == "caller" || len(a.names) == maxNamed || slices.Contains(a.names, name) {
				p.refuse("the argument " + name)
			}
			a.names, a.named = append(a.names, name), append(a.named, p.expression())
		case len(a.names) > 0:
			p.fail("an argument without a name stands behind those with one")
		default:
			a.plain = append(a.plain, p.expression())
		}
	}
	return a
}

func (p *parser) filter(of expression) expression {
	name := p.name()
	f := &filterCall{of: of, name: name}
	if p.is(kindOperator, ".") || filters[name] == nil {
		p.refuse("the filter " + name)
	}
	if p.is(kindOperator, "(") {
		f.arguments = p.arguments()
	}
	p.named(name, f.arguments)
	return f
}

// named refuses filters and tests that are named by a text.
func (p *parser) named(filter string, a arguments) {
	at := map[string]int{"map": 0, "select": 0, "reject": 0, "selectattr": 1, "rejectattr": 1}
	i, takes := at[filter]
	if !takes || i >= len(a.plain) {
		return
	}
	c, _ := a.plain[i].(constant)
	name, _ := c.value.(string)
	known := tests[name] != nil
	if filter == "map" {
		known = filters[name] != nil
	}
	if !known {
		p.refuse(fmt.Sprintf("%s with %q, or with a name that is not written out,", filter, name))
	}
}

func (p *parser) test(of expression) expression {
	negated := p.word("not")
	t := &testCall{of: of, name: p.name()}
	if p.is(kindOperator, ".") || tests[t.name] == nil {
		p.refuse("the test " + t.name)
	}
	switch next := p.now(); {
	case p.is(kindOperator, "("):
		t.arguments = p.arguments()
	case next.kind == kindName && slices.Contains([]string{"else", "or", "and"}, next.text):
	case next.kind == kindName || next.kind == kindString || next.kind == kindInt || next.kind == kindFloat ||
		p.is(kindOperator, "[") || p.is(kindOperator, "{"):
		if next.kind == kindName && next.text == "is" {
			p.fail("a test behind a test")
		}
		p.enter()
		t.plain = []expression{p.postfix(p.primary())}
		p.leave()
	}
	if negated {
		return &negation{t}
	}
	return t
}
