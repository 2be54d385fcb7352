package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"
)

// Decode reads JSON into a config that already holds the defaults. Fields that
// are absent or null keep them; so does everything when raw is empty or null. An
// unknown field, a wrong type and anything after the value are errors, which
// name the field.
func Decode(raw json.RawMessage, into any) error {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return readable(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is something after the end of the config")
	}
	return nil
}

// readable says in the words of the config what encoding/json says in Go's.
func readable(err error) error {
	var wrong *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &wrong) && wrong.Field == "":
		return fmt.Errorf("the config is %s, not %s", found(wrong.Value), kind(wrong.Type))
	case errors.As(err, &wrong):
		field := strings.TrimPrefix(wrong.Field, "Adoption.") // whose fields stand beside the others
		return fmt.Errorf("%s: it is %s, not %s", field, found(wrong.Value), kind(wrong.Type))
	case errors.As(err, &syntax):
		return fmt.Errorf("at byte %d: %w", syntax.Offset, err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the config ends too early")
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return fmt.Errorf("unknown field %s", field)
	}
	return err
}

// found says what encoding/json found.
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

// kind says what a field of this type wants.
func kind(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[Duration]():
		return `a duration like "1.5s"`
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

// A Duration is written as a string like "1.5s" or "100ms".
type Duration time.Duration

// String returns the duration as a config has it.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText implements [encoding.TextMarshaler].
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalJSON implements [json.Unmarshaler]. Its error is of the type to which
// encoding/json adds the name of the field.
func (d *Duration) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		return nil
	}
	wrong := &json.UnmarshalTypeError{Value: "number", Type: reflect.TypeFor[Duration]()}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		if !errors.As(err, &wrong) {
			return err
		}
		wrong.Type = reflect.TypeFor[Duration]()
		return wrong
	}
	parsed, err := time.ParseDuration(s)
	if err != nil {
		wrong.Value = fmt.Sprintf("string %q", s)
		return wrong
	}
	*d = Duration(parsed)
	return nil
}
