package requestkey

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/internal/strict"
)

// ParseDialects reads the config form: a JSON array of dialects, in which an
// unknown field is an error. Nothing and null give no dialects.
func ParseDialects(raw json.RawMessage) ([]dialect.Dialect, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var each []json.RawMessage
	if err := json.Unmarshal(raw, &each); err != nil {
		return nil, errors.New("dialects: want a list")
	}
	out := make([]dialect.Dialect, len(each))
	for i, r := range each {
		if err := strict.Decode(r, &out[i]); err != nil {
			return nil, fmt.Errorf("dialects[%d]: %w", i, err)
		}
	}
	if _, err := NewTable(out...); err != nil {
		return nil, err
	}
	return out, nil
}

// extend returns d on top of the built-in dialect that it is like.
func extend(d dialect.Dialect) (dialect.Dialect, error) {
	if d.Like == "" {
		return d, nil
	}
	for _, b := range builtin {
		if !slices.Contains(b.Methods, d.Like) {
			continue
		}
		b, err := extend(b)
		b.Methods, b.Like = []string{d.Like}, ""
		overlay(reflect.ValueOf(&b).Elem(), reflect.ValueOf(d))
		return b, err
	}
	return d, fmt.Errorf("like: no built-in dialect for method %q", d.Like)
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
	if len(d.Methods) == 0 {
		return fmt.Errorf("methods: none given")
	}
	for _, m := range d.Methods {
		if !isMethod(m) {
			return fmt.Errorf("methods: %q is not of the form /package.Service/Method", m)
		}
	}
	if d.Messages != nil && d.Messages.Content == "" {
		return fmt.Errorf("messages.content: it is not set")
	}
	switch {
	case d.Abort == "":
	case !isMethod(d.Abort):
		return fmt.Errorf("abort: %q is not of the form /package.Service/Method", d.Abort)
	case d.RequestID == "":
		return fmt.Errorf("abort: request_id is not set, so no request could be named")
	}
	return nil
}

// isMethod reports whether s is a full method name.
func isMethod(s string) bool {
	service, method, ok := strings.Cut(strings.TrimPrefix(s, "/"), "/")
	return strings.HasPrefix(s, "/") && ok && service != "" && method != "" && !strings.Contains(method, "/")
}
