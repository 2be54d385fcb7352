// Package strict reads and checks JSON configs.
//
// The rule. A field that is unknown, there twice, of a wrong type or in other case than its own, and
// anything after the value, is refused with an error that names where it stands and what it ought to
// be, in the words of the config. encoding/json takes a field that is there twice, and one in other
// case, in silence, and reports what is wrong in Go's words. A zero means the default. If a reader may
// expect a zero to mean something else, the field's tag "zero" says what to write for that, and a zero
// that is written out is refused.
//
// Complexity. Each value is read twice for every level that it is deep.
package strict

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Decode reads JSON into a pointer to a config that already holds the defaults. Fields that are absent
// or null keep them; so does everything when raw is empty or null.
func Decode(raw []byte, into any) error {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil
	}
	var whole json.RawMessage
	var syntax *json.SyntaxError
	if err := json.Unmarshal(raw, &whole); errors.As(err, &syntax) {
		return fmt.Errorf("it is not JSON: at byte %d: %w", syntax.Offset, err)
	}
	if t := reflect.TypeOf(into); t != nil && t.Kind() == reflect.Pointer {
		if err := check(whole, t.Elem(), ""); err != nil {
			return err
		}
	}
	return json.Unmarshal(whole, into)
}

// check refuses fields that are unknown or there twice, and values of a wrong type. path is where raw stands.
func check(raw json.RawMessage, t reflect.Type, path string) error {
	into := reflect.New(t).Interface()
	_, itself := into.(json.Unmarshaler)
	switch {
	case itself:
	case t.Kind() == reflect.Pointer:
		return check(raw, t.Elem(), path)
	case raw[0] == '{' && (t.Kind() == reflect.Struct || t.Kind() == reflect.Map):
		return checkObject(raw, t, path)
	case raw[0] == '[' && t.Kind() == reflect.Slice:
		var each []json.RawMessage
		_ = json.Unmarshal(raw, &each) // raw is valid
		for i := range each {
			if err := check(each[i], t.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
		return nil
	}
	err := json.Unmarshal(raw, into)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong) && path == "":
		return fmt.Errorf("the config is %s, not %s", found(wrong.Value), kind(wrong.Type))
	case errors.As(err, &wrong):
		return fmt.Errorf("%s: it is %s, not %s", path, found(wrong.Value), kind(wrong.Type))
	case err == nil || strings.HasPrefix(err.Error(), path):
		return err
	}
	return fmt.Errorf("%s: %w", path, err)
}

func checkObject(raw json.RawMessage, t reflect.Type, path string) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	_, _ = d.Token() // {
	known, seen := fields(t), map[string]bool{}
	for d.More() {
		token, _ := d.Token() // raw is valid
		name, _ := token.(string)
		var value json.RawMessage
		_ = d.Decode(&value)
		field, ok := known[name]
		in := field.Type
		if t.Kind() == reflect.Map {
			in, ok = t.Elem(), true
		}
		whole := strings.TrimPrefix(path+"."+name, ".")
		switch {
		case !ok && path == "":
			return fmt.Errorf("unknown field %q", name)
		case !ok:
			return fmt.Errorf("%s: unknown field %q", path, name)
		case seen[name]:
			return fmt.Errorf("%s: it is there twice", whole)
		case field.Tag.Get("zero") != "" && isZero(value):
			return fmt.Errorf("%s: 0 is the default, as if it were left out; write %s", whole, field.Tag.Get("zero"))
		}
		seen[name] = true
		if err := check(value, in, whole); err != nil {
			return err
		}
	}
	return nil
}

// isZero reports whether JSON is the number 0 or a duration of 0.
func isZero(raw json.RawMessage) bool {
	var value any
	_ = json.Unmarshal(raw, &value) // raw is valid
	if text, ok := value.(string); ok {
		d, err := time.ParseDuration(text)
		return err == nil && d == 0
	}
	return value == 0.0
}

// fields returns the fields of a struct by their names in JSON, with those of the structs that it embeds.
func fields(t reflect.Type) map[string]reflect.StructField {
	known := map[string]reflect.StructField{}
	if t.Kind() != reflect.Struct {
		return known
	}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" || !f.IsExported() || name == "-" {
			continue
		}
		known[cmp.Or(name, f.Name)] = f
	}
	return known
}

// found returns what encoding/json found: a string, a number, a number 2.5.
func found(value string) string {
	words := map[string]string{"array": "a list", "object": "an object", "bool": "true or false"}
	return cmp.Or(words[value], "a "+value)
}

// kinds are what fields want, by the kind of their type.
var kinds = map[reflect.Kind]string{
	reflect.Slice: "a list", reflect.Struct: "an object", reflect.Map: "an object", reflect.Bool: "true or false",
	reflect.Float64: "a number",
	reflect.Int:     "a whole number within its bounds", reflect.Int64: "a whole number within its bounds",
}

// names are what fields of types that read themselves want.
var names = map[string]string{"Duration": `a duration like "1.5s"`, "Limit": `a number of at least 0 or "off"`}

// kind returns what a field of this type wants.
func kind(t reflect.Type) string {
	return cmp.Or(names[t.Name()], kinds[t.Kind()], "a "+t.Kind().String())
}

// Within refuses a value out of bounds. The error names the field.
func Within[T cmp.Ordered](field string, v, least, most T) error {
	if v >= least && v <= most { // false for NaN
		return nil
	}
	return fmt.Errorf("%s: %v is not between %v and %v", field, v, least, most)
}

// Want returns an error where a condition does not hold.
func Want(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// In puts the name of an object before an error, which names a field of it; nil stays nil.
func In(object string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s%w", object, err)
}
