package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// tojson writes a value as Python's json does, as transformers define it.
func tojson(m *machine, v value, g given) (value, error) {
	a, err := g.bind("ensure_ascii", "indent", "separators", "sort_keys")
	if err != nil {
		return nil, err
	}
	w := &jsonWriter{machine: m, ascii: truth(or(a[0], false)), sorted: truth(or(a[3], false)), item: ", ", member: ": "}
	switch by := or(a[1], nil).(type) {
	case nil:
	case int64:
		if by > 1000 {
			return nil, unsupported("a width of more than 1000")
		}
		w.indent, w.lines, w.item = strings.Repeat(" ", int(max(by, 0))), true, ","
	case string:
		w.indent, w.lines, w.item = by, true, ","
	default:
		return nil, unsupported("an indent that is no number")
	}
	if pair, is := or(a[2], nil).(*list); is && len(pair.items) == 2 {
		item, ok1 := pair.items[0].(string)
		member, ok2 := pair.items[1].(string)
		if !ok1 || !ok2 {
			return nil, errors.New("separators are two texts")
		}
		w.item, w.member = item, member
	} else if or(a[2], nil) != nil {
		return nil, errors.New("separators are two texts")
	}
	err = w.value(v, 0)
	return w.String(), err
}

type jsonWriter struct {
	strings.Builder
	machine       *machine
	ascii, sorted bool
	lines         bool // a member a line
	indent        string
	item, member  string // what stands between them
}

func (w *jsonWriter) value(v value, level int) error {
	before := w.Len()
	switch v := v.(type) {
	case nil:
		w.WriteString("null")
	case bool:
		w.WriteString(strconv.FormatBool(v))
	case int64:
		w.WriteString(strconv.FormatInt(v, 10))
	case float64:
		if s := float(v); strings.ContainsAny(s, "na") {
			w.WriteString(map[string]string{"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[s])
		} else {
			w.WriteString(s)
		}
	case string:
		w.text(v)
	case markup:
		w.text(string(v))
	case *list:
		if v.kind > kindTuple {
			return mistake("the JSON", v)
		}
		return w.members("[]", len(v.items), level, func(i int) error { return w.value(v.items[i], level+1) })
	case *dict:
		keys := v.keys
		if w.sorted {
			keys = slices.Sorted(slices.Values(keys))
		} else if err := v.ordered(); err != nil {
			return err
		}
		return w.members("{}", len(keys), level, func(i int) error {
			w.text(keys[i])
			w.WriteString(w.member)
			x, _ := v.get(keys[i])
			if err := w.machine.grow(len(keys[i])); err != nil {
				return err
			}
			return w.value(x, level+1)
		})
	default:
		return mistake("the JSON", v)
	}
	return w.machine.grow(w.Len() - before)
}

// members writes a list or an object.
func (w *jsonWriter) members(brackets string, n, level int, write func(i int) error) error {
	w.WriteByte(brackets[0])
	for i := range n {
		if i > 0 {
			w.WriteString(w.item)
		}
		w.line(level + 1)
		if err := w.machine.grow(len(w.item) + level*len(w.indent)); err != nil {
			return err
		}
		if err := write(i); err != nil {
			return err
		}
	}
	if n > 0 {
		w.line(level)
	}
	w.WriteByte(brackets[1])
	return w.machine.charge(1)
}

func (w *jsonWriter) line(level int) {
	if w.lines {
		w.WriteByte('\n')
		w.WriteString(strings.Repeat(w.indent, level))
	}
}

func (w *jsonWriter) text(s string) {
	w.WriteByte('"')
	for _, r := range s {
		switch i := strings.IndexRune("\"\\\n\r\t\b\f", r); {
		case i >= 0:
			w.WriteByte('\\')
			w.WriteByte(`"\nrtbf`[i])
		case r < ' ' || w.ascii && r > '~' && r < 0x10000:
			if r == 0x7F {
				w.WriteRune(r)
				continue
			}
			fmt.Fprintf(w, `\u%04x`, r)
		case w.ascii && r > '~':
			r -= 0x10000
			fmt.Fprintf(w, `\u%04x\u%04x`, 0xD800+r>>10, 0xDC00+r&0x3FF)
		default:
			w.WriteRune(r)
		}
	}
	w.WriteByte('"')
}

// readJSON reads JSON as Python does: the order of members stays, and whole numbers are whole.
func readJSON(raw []byte) (value, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return readValue(d, 0)
}

func readValue(d *json.Decoder, depth int) (value, error) {
	if depth > maxDepth {
		return nil, errDepth
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		if !strings.ContainsAny(t.String(), ".eE") {
			return t.Int64()
		}
		return t.Float64()
	case json.Delim:
		if t == '[' {
			l := &list{depth: 1}
			for d.More() {
				x, err := readValue(d, depth+1)
				if err != nil {
					return nil, err
				}
				l.items, l.depth = append(l.items, x), max(l.depth, depthOf(x)+1)
			}
			_, err := d.Token()
			return l, err
		}
		object := &dict{depth: 1}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			x, err := readValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			object.put(key.(string), x)
		}
		_, err := d.Token()
		return object, err
	}
	return t, nil
}
