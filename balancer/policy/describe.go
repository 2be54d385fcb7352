package policy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"log/slog"
)

// Attrs describes a config in one log line: its policy, session keys and mode, and as "settings" every other field that
// differs from its default.
func (c Config) Attrs() []slog.Attr {
	full := c.WithDefaults()
	settings, usual := fieldsOf(full), fieldsOf(Config{Policy: Selection{Name: full.Policy.Name}}.WithDefaults())
	for name, value := range settings {
		if name == "session_keys" || name == "mode" || bytes.Equal(value, usual[name]) {
			delete(settings, name)
		}
	}
	text, _ := json.Marshal(settings) // of JSON
	return []slog.Attr{
		slog.String("policy", full.Deciding()), slog.Any("session_keys", full.SessionKeys),
		slog.String("mode", cmp.Or(full.Mode, Broadcast)), slog.String("settings", string(text)),
	}
}

// fieldsOf is a config field by field, as it is written.
func fieldsOf(c Config) (fields map[string]json.RawMessage) {
	raw, _ := json.Marshal(c) // of checked JSON
	_ = json.Unmarshal(raw, &fields)
	return fields
}
