package strict

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// checkFields refuses fields that are unknown or there twice. What is no JSON or of a wrong type is
// left to encoding/json.
func checkFields(raw []byte, t reflect.Type, path string) error {
	if own, ok := reflect.New(t).Interface().(json.Unmarshaler); ok {
		return readsItself(own, raw, path)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return checkFields(raw, t.Elem(), path)
	case reflect.Struct, reflect.Map:
		return checkObject(raw, t, path)
	case reflect.Slice:
		var each []json.RawMessage
		if json.Unmarshal(raw, &each) != nil {
			return nil
		}
		for i := range each {
			if err := checkFields(each[i], t.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// readsItself adds to the error of a type that reads itself where it stands, if that does not say so.
func readsItself(v json.Unmarshaler, raw []byte, path string) error {
	err := v.UnmarshalJSON(raw)
	var wrong *json.UnmarshalTypeError
	if err == nil || errors.As(err, &wrong) { // to which encoding/json adds it
		return nil
	}
	if strings.HasPrefix(err.Error(), path) {
		return err
	}
	return fmt.Errorf("%s: %w", path, err)
}

func checkObject(raw []byte, t reflect.Type, path string) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	if begin, err := d.Token(); err != nil || begin != json.Delim('{') {
		return nil
	}
	var known map[string]reflect.Type
	if t.Kind() == reflect.Struct {
		known = fields(t)
	}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil
		}
		name, _ := token.(string)
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return nil
		}
		in, ok := known[name]
		switch {
		case t.Kind() == reflect.Map:
			in = t.Elem()
		case !ok && path == "":
			return fmt.Errorf("unknown field %q", name)
		case !ok:
			return fmt.Errorf("%s: unknown field %q", path, name)
		}
		whole := strings.TrimPrefix(path+"."+name, ".")
		if seen[name] {
			return fmt.Errorf("%s: it is there twice", whole)
		}
		seen[name] = true
		if err := checkFields(value, in, whole); err != nil {
			return err
		}
	}
	return nil
}

// fields returns the fields of a struct by their names in JSON, with those of the structs that it embeds.
func fields(t reflect.Type) map[string]reflect.Type {
	known := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" || !f.IsExported() || name == "-" {
			continue
		}
		known[cmp.Or(name, f.Name)] = f.Type
	}
	return known
}
