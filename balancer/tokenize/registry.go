package tokenize

import (
	"fmt"
	"sync"
)

// packages are what a program imports for what it configures.
var packages = map[string]string{
	"file":          "github.com/warmpath/warmpath/tokenizers/huggingface",
	"tiktoken":      "github.com/warmpath/warmpath/tokenizers/tiktoken",
	"chat_template": "github.com/warmpath/warmpath/tokenizers/jinja",
}

var registry = struct {
	sync.RWMutex // taken alone; nothing is opened under it
	sources      map[string]func(string) (Tokenizer, error)
	template     func(string) (Template, error)
}{sources: make(map[string]func(string) (Tokenizer, error))}

// Register makes known how the value of a field of [Config], file or tiktoken, is
// opened. Packages that do so call it from init.
func Register(field string, open func(value string) (Tokenizer, error)) {
	registry.Lock()
	defer registry.Unlock()
	registry.sources[field] = open
}

// RegisterTemplate makes known how a chat_template is opened.
func RegisterTemplate(open func(path string) (Template, error)) {
	registry.Lock()
	defer registry.Unlock()
	registry.template = open
}

func openSource(field, value string) (Tokenizer, error) {
	registry.RLock()
	open := registry.sources[field]
	registry.RUnlock()
	if open == nil {
		return nil, notLinked(field)
	}
	t, err := open(value)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return t, nil
}

func openTemplate(path string) (Template, error) {
	registry.RLock()
	open := registry.template
	registry.RUnlock()
	if open == nil {
		return nil, notLinked("chat_template")
	}
	t, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("chat_template: %w", err)
	}
	return t, nil
}

func notLinked(field string) error {
	return fmt.Errorf("%s: this program cannot read it; it must import _ %q", field, packages[field])
}
