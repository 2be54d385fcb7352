package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"
)

// Off switches off what a [Limit] or a [Duration] bounds, where its field may be off. It is "off" in JSON and YAML.
const Off = -1

// isOff reports whether JSON is Off. YAML reads off without quotes as false.
func isOff(raw []byte) bool { return string(raw) == `"off"` || string(raw) == "false" }

// A Limit is a number that may be [Off]; 0 = the default. In JSON it is a number of at least 0, or "off".
type Limit float64

// MarshalJSON implements [json.Marshaler].
func (l Limit) MarshalJSON() ([]byte, error) {
	if l == Off {
		return []byte(`"off"`), nil
	}
	return json.Marshal(float64(l))
}

// UnmarshalJSON implements [json.Unmarshaler]. Its error is of the type to which encoding/json adds the name of the
// field.
func (l *Limit) UnmarshalJSON(raw []byte) error {
	switch {
	case string(raw) == "null":
		return nil
	case isOff(raw):
		*l = Off
		return nil
	}
	var n float64
	if err := json.Unmarshal(raw, &n); err != nil {
		return ofType[Limit](err)
	}
	if n < 0 {
		return &json.UnmarshalTypeError{Value: "number " + string(raw), Type: reflect.TypeFor[Limit]()}
	}
	*l = Limit(n)
	return nil
}

// A Duration is written as a string like "1.5s" or "100ms", or "off".
type Duration time.Duration

// String returns the duration as a config has it.
func (d Duration) String() string {
	if d == Off {
		return "off"
	}
	return time.Duration(d).String()
}

// MarshalText implements [encoding.TextMarshaler].
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalJSON implements [json.Unmarshaler]. Its error is of the type to which
// encoding/json adds the name of the field.
func (d *Duration) UnmarshalJSON(raw []byte) error {
	switch {
	case string(raw) == "null":
		return nil
	case isOff(raw):
		*d = Off
		return nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return ofType[Duration](err)
	}
	parsed, err := time.ParseDuration(s)
	if err != nil {
		return &json.UnmarshalTypeError{Value: fmt.Sprintf("string %q", s), Type: reflect.TypeFor[Duration]()}
	}
	*d = Duration(parsed)
	return nil
}

// ofType gives an error of a wrong type the type that the field has.
func ofType[T any](err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		wrong.Type = reflect.TypeFor[T]()
		return wrong
	}
	return err
}

// within refuses a value out of bounds. The error names the field.
func within[T int | float64 | Limit | Duration](name string, v, least, most T) error {
	if v >= least && v <= most { // false for NaN
		return nil
	}
	return fmt.Errorf("%s: %v is not between %v and %v", name, v, least, most)
}

// whole refuses what is neither a whole number of at most so many nor Off.
func whole(name string, v Limit, most int) error {
	if v == Off || v >= 0 && v <= Limit(most) && v == Limit(int(v)) {
		return nil
	}
	return fmt.Errorf("%s: %v is neither a whole number from 0 to %d nor off", name, v, most)
}

// mayBeOff refuses a value that is neither within bounds nor Off.
func mayBeOff[T Limit | Duration](name string, v, most T) error {
	if v == Off {
		return nil
	}
	return within(name, v, 0, most)
}
