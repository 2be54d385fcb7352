package requestkey

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	slashed "path"
	"reflect"

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
	switch {
	case len(d.Methods) == 0:
		return errors.New("methods: none given")
	case d.Messages != nil && d.Messages.Path == "":
		return errors.New("messages.path: it is not set")
	case d.Messages != nil && d.Messages.Content == "":
		return errors.New("messages.content: it is not set")
	case d.Media != nil && d.Media.Path == "":
		return errors.New("media.path: it is not set")
	case d.Abort == "":
	case !isMethod(d.Abort):
		return fmt.Errorf("abort: %q is not of the form /package.Service/Method", d.Abort)
	case d.RequestID == "":
		return errors.New("abort: request_id is not set, so no request could be named")
	}
	return nil
}

// isMethod reports whether s is a full method name.
func isMethod(s string) bool {
	ok, _ := slashed.Match("/?*/?*", s)
	return ok
}
