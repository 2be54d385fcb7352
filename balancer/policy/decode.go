package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/warmpath/warmpath/internal/strict"
)

// Decode reads JSON into a config that already holds the defaults. Fields that
// are absent or null keep them; so does everything when raw is empty or null. A
// field that is unknown, there twice or of a wrong type and anything after the
// value are errors, which name the field.
func Decode(raw json.RawMessage, into any) error { return strict.Decode(raw, into) }

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
