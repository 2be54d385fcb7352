package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/warmpath/warmpath/internal/strict"
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

// UnmarshalJSON implements [json.Unmarshaler].
func (l *Limit) UnmarshalJSON(raw []byte) error {
	return unmarshal(l, raw, "number", func(n float64) (Limit, bool) { return Limit(n), n >= 0 })
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

// UnmarshalJSON implements [json.Unmarshaler].
func (d *Duration) UnmarshalJSON(raw []byte) error {
	return unmarshal(d, raw, "string", func(s string) (Duration, bool) {
		parsed, err := time.ParseDuration(s)
		return Duration(parsed), err == nil
	})
}

// unmarshal reads a value that may be null or [Off], and is JSON of another type. Its error is of the type to which
// encoding/json adds the name of the field.
func unmarshal[T Limit | Duration, J float64 | string](to *T, raw []byte, kind string, parse func(J) (T, bool)) error {
	switch {
	case string(raw) == "null":
		return nil
	case isOff(raw):
		*to = Off
		return nil
	}
	var read J
	wrong := &json.UnmarshalTypeError{Value: kind + " " + string(raw), Type: reflect.TypeFor[T]()}
	if err := json.Unmarshal(raw, &read); errors.As(err, &wrong) {
		wrong.Type = reflect.TypeFor[T]()
		return wrong
	} else if err != nil {
		return err
	}
	value, ok := parse(read)
	if !ok {
		return wrong
	}
	*to = value
	return nil
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
	return strict.Within(name, v, 0, most)
}
