// Package strict reads JSON configs.
//
// The rule. A field that is unknown, there twice, of a wrong type or in other case than its own, and
// anything after the value, is refused with an error that names where it stands and what it ought to
// be, in the words of the config. encoding/json takes a field that is there twice, and one in other
// case, in silence, and reports what is wrong in Go's words.
//
// Complexity. Each value is read twice for every level that it is deep.
package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// Decode reads JSON into a pointer to a config that already holds the defaults. Fields that are absent
// or null keep them; so does everything when raw is empty or null.
func Decode(raw []byte, into any) error {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil
	}
	if t := reflect.TypeOf(into); t != nil && t.Kind() == reflect.Pointer {
		if err := checkFields(raw, t.Elem(), ""); err != nil {
			return err
		}
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if err := d.Decode(into); err != nil {
		return readable(err, into)
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is something after the end of the config")
	}
	return nil
}

// readable puts an error of encoding/json, in Go's words, into the words of the config.
func readable(err error, into any) error {
	var wrong *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &wrong) && wrong.Field == "":
		return fmt.Errorf("the config is %s, not %s", found(wrong.Value), kind(wrong.Type))
	case errors.As(err, &wrong):
		return fmt.Errorf("%s: it is %s, not %s", withoutEmbedded(wrong.Field, into), found(wrong.Value), kind(wrong.Type))
	case errors.As(err, &syntax):
		return fmt.Errorf("it is not JSON: at byte %d: %w", syntax.Offset, err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the config ends too early")
	}
	return err
}

// withoutEmbedded returns a field's path without the struct that the config embeds: its fields stand beside the others.
func withoutEmbedded(path string, into any) string {
	first, rest, nested := strings.Cut(path, ".")
	t := reflect.TypeOf(into).Elem()
	if !nested || t.Kind() != reflect.Struct {
		return path
	}
	if f, ok := t.FieldByName(first); ok && f.Anonymous {
		return rest
	}
	return path
}

// found returns what encoding/json found.
func found(value string) string {
	switch value {
	case "array":
		return "a list"
	case "object":
		return "an object"
	case "bool":
		return "true or false"
	}
	return "a " + value // string, number, number 2.5
}

// kind returns what a field of this type wants.
func kind(t reflect.Type) string {
	switch {
	case t.Name() == "Duration":
		return `a duration like "1.5s"`
	case t.Name() == "Limit":
		return `a number of at least 0 or "off"`
	case t.Kind() == reflect.Slice:
		return "a list"
	case t.Kind() == reflect.Struct, t.Kind() == reflect.Map:
		return "an object"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Float64:
		return "a number"
	case t.Kind() == reflect.Int, t.Kind() == reflect.Int64:
		return "a whole number within its bounds"
	}
	return "a " + t.Kind().String()
}
