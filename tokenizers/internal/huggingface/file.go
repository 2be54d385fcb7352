package huggingface

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
	"weak"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/tokenizers/internal/bpe"
)

func init() {
	dialect.RegisterTokenizer("file", func(path string) (dialect.Tokenizer, error) { return Open(path) })
}

// maxFile bounds a tokenizer.json, in bytes.
const maxFile = 256 << 20

// file identifies one version of a file.
type file struct {
	path     string
	size     int64
	modified time.Time
}

// opened are the files in use.
var opened = struct {
	sync.Mutex // held while a file is read, so that it is read once
	byFile     map[file]weak.Pointer[bpe.Encoder]
}{byFile: make(map[file]weak.Pointer[bpe.Encoder])}

// Open reads the file, or returns what it read before if that is still in use and
// the file has not changed.
func Open(path string) (*bpe.Encoder, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	key := file{path, info.Size(), info.ModTime()}
	opened.Lock()
	defer opened.Unlock()
	if e := opened.byFile[key].Value(); e != nil {
		return e, nil
	}
	raw, err := readFile(path)
	if err != nil {
		return nil, err
	}
	e, err := Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for k, p := range opened.byFile {
		if p.Value() == nil {
			delete(opened.byFile, k)
		}
	}
	opened.byFile[key] = weak.Make(e)
	return e, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(raw) > maxFile {
		err = fmt.Errorf("%s is larger than %d MiB", path, maxFile>>20)
	}
	return raw, err
}

// document is a tokenizer.json, as far as it matters.
type document struct {
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Model         json.RawMessage `json:"model"`
}

type addedToken struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LeftStrip  bool   `json:"lstrip"`
	RightStrip bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
}

// Parse reads the text of a tokenizer.json.
func Parse(raw []byte) (*bpe.Encoder, error) {
	var d document
	if err := json.Unmarshal(raw, &d); err != nil {
		return nil, err
	}
	b := builder{before: true}
	for _, step := range []struct {
		name string
		read func(json.RawMessage) error
		raw  json.RawMessage
	}{
		{"normalizer", b.normalizer, d.Normalizer},
		{"pre_tokenizer", b.preTokenizer, d.PreTokenizer},
		{"post_processor", b.postProcessor, d.PostProcessor},
		{"model", b.model, d.Model},
	} {
		if err := step.read(step.raw); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	if err := b.addedTokens(d.AddedTokens); err != nil {
		return nil, fmt.Errorf("added_tokens: %w", err)
	}
	return b.build()
}

// ErrUnsupported means that a file asks for something that is not done here.
var ErrUnsupported = errors.New("not supported")

func unsupported(what string) error { return fmt.Errorf("%s is %w", what, ErrUnsupported) }

// typed is a part of the file: its type, and the whole of it.
type typed struct {
	Type string `json:"type"`
}

// typeOf returns the type of a part; "" where there is none.
func typeOf(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	var t typed
	if err := json.Unmarshal(raw, &t); err != nil {
		return "", err
	}
	if t.Type == "" {
		return "", errors.New("it has no type")
	}
	return t.Type, nil
}
