package policy

import (
	"encoding/json"

	"github.com/warmpath/warmpath/internal/strict"
)

// Decode reads JSON into a config. Fields that are absent or null stay as they are; so does everything when raw is
// empty or null. A field that is unknown, there twice or of a wrong type and anything after the
// value are errors, which name the field.
func Decode(raw json.RawMessage, into any) error { return strict.Decode(raw, into) }
