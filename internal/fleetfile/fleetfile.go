// Package fleetfile reads fleet files and follows them. It brings YAML, which what clients link by
// default does without.
//
// Reading is strict: unknown, repeated and misspelt fields, a second document and an empty file are refused with an
// error that names the entry and the field. A watched file that breaks is reported once.
package fleetfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/admission"
	"github.com/warmpath/warmpath/internal/strict"
)

// maxFile bounds a file, in bytes.
const maxFile = 64 << 20

// Load reads a fleet file.
func Load(path string) ([]policy.Attributes, error) {
	data, err := Read(path)
	if err != nil {
		return nil, err
	}
	return ParseFile(path, data)
}

// ParseFile is Parse for the text of a file, which errors name.
func ParseFile(path string, data []byte) ([]policy.Attributes, error) {
	replicas, err := Parse(data)
	return replicas, strict.In(path+": ", err)
}

// Read reads a regular file of bounded size: neither a pipe nor a huge file in its place may hang or fill the reader.
func Read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: larger than %d MiB", path, maxFile>>20)
	}
	return data, nil
}

// Parse reads the text of a fleet file, YAML or JSON. "replicas: []" is a fleet
// of no replica; a text without replicas is an error, since that is what a file
// looks like while it is being written.
func Parse(data []byte) ([]policy.Attributes, error) {
	if err := oneDocument(data); err != nil {
		return nil, err
	}
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		if bad := (*json.UnsupportedValueError)(nil); errors.As(err, &bad) {
			return nil, fmt.Errorf("a number is %s; weight must be finite", bad.Str)
		}
		return nil, errors.New(strings.Join(strings.Fields(err.Error()), " ")) // one line
	}
	return admission.Parse(text)
}

// oneDocument refuses a second YAML document: the decoder would drop it unread.
func oneDocument(data []byte) error {
	content := false
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		line = strings.TrimRight(line, " \t\r\n")
		switch {
		case line == "---" || strings.HasPrefix(line, "--- "):
			if content {
				return fmt.Errorf("line %d: a second document; want one", n)
			}
			content = line != "---"
		case line != "" && line[0] != '#' && line[0] != '%':
			content = true
		}
	}
	return nil
}
