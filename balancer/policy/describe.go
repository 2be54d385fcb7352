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
	settings := fieldsOf(full)
	for name, usual := range fieldsOf(Config{Policy: Selection{Name: full.Policy.Name}}.WithDefaults()) {
		if bytes.Equal(settings[name], usual) {
			delete(settings, name)
		}
	}
	delete(settings, "session_keys")
	delete(settings, "mode")
	text, _ := json.Marshal(settings) // of JSON
	return []slog.Attr{
		slog.String("policy", full.Deciding()), slog.Any("session_keys", full.SessionKeys),
		slog.String("mode", cmp.Or(full.Mode, Broadcast)), slog.String("settings", string(text)),
	}
}

// fieldsOf is a config field by field, as it is written.
func fieldsOf(c Config) map[string]json.RawMessage {
	fields := make(map[string]json.RawMessage)
	if raw, err := json.Marshal(c); err == nil {
		_ = json.Unmarshal(raw, &fields)
	}
	return fields
}
