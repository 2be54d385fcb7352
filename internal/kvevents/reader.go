package kvevents

import (
	"encoding/binary"
	"errors"
	"strings"
)

// Field is what a field of an event means, whatever its name or number is in a wire format.
type Field uint8

// The fields. All but the first are of one event.
const (
	NoField Field = iota
	FieldKind
	FieldHashes // a list, or one of them
	FieldParent
	FieldTokens // a list, or one of them
	FieldBlockSize
	FieldMedium
	FieldAdapter
	FieldAdapterID
	FieldGroup
	FieldSpec
	FieldSalt
	FieldLocality
	FieldExtraKeys // a list with the extra keys of every block
	FieldBlockKeys // the extra keys of the next block
	FieldImages    // a list with what is not null for a block with images
	FieldMatchable // whether the tokens are all there is to the blocks
)

// Value is a field's value in a wire format.
type Value interface {
	// Null reports whether there is none.
	Null() bool
	// Number returns an integer of either sign, or a boolean.
	Number() (v uint64, ok bool)
	// Text and Bytes return a string; formats that do not distinguish them return it from both.
	Text() (b []byte, ok bool)
	Bytes() (b []byte, ok bool)
	// List calls each for the elements until it returns an error; ErrType if the value is no list.
	List(each func(Value) error) error
	// Tokens appends the elements of a list of tokens; ErrType if the value is none.
	Tokens(to []uint32) ([]uint32, error)
}

// ErrType is the error of a value of another type than its field's.
var ErrType = errors.New("kvevents: unexpected type")

// reader is the event that is being read.
type reader struct {
	event          Event
	hashes, tokens int // where its own begin in the batch's
	split          int // events that were split off
	keys           []extraKey
	block          int // that the next extra keys are of
	images         int // first block with images, -1
	hidden         bool
	media          []string // by number
}

// extraKey is an extra key of a block; its text is nil if it is none.
type extraKey struct {
	block int
	text  []byte
}

// Begin begins an event.
func (b *Batch) Begin(k Kind) {
	r := &b.reader
	*r = reader{
		event: Event{Kind: k}, hashes: len(b.hashes), tokens: len(b.tokens), keys: r.keys[:0], images: -1, media: r.media,
	}
}

// End keeps the event, or counts it where it could not be read or is of no known kind.
func (b *Batch) End(err error) {
	r := &b.reader
	switch {
	case err != nil:
		b.Bad[BadEvent]++
	case r.event.Kind == UnknownKind:
		b.Bad[BadKind]++
	default:
		b.keep(len(b.hashes), len(b.tokens))
	}
}

// keep appends the event with its hashes and tokens up to these places.
func (b *Batch) keep(hashes, tokens int) {
	r := &b.reader
	e := r.event
	if hashes > r.hashes {
		e.Hashes = b.hashes[r.hashes:hashes:hashes]
	}
	if tokens > r.tokens {
		e.Tokens = b.tokens[r.tokens:tokens:tokens]
	}
	e.Opaque = len(e.Hashes)
	if r.hidden {
		e.Opaque = 0
	} else if r.images >= 0 {
		e.Opaque = min(e.Opaque, r.images)
	}
	r.extraKeys(&e)
	b.Events = append(b.Events, e)
}

// extraKeys finds the cache salt among the extra keys of the blocks, and the first block with keys that are neither
// salt nor adapter. The first block of a prompt has the salt as its only string; what else a block has stands for
// content that is not in its tokens.
func (r *reader) extraKeys(e *Event) {
	salt := ""
	for i := 0; i < len(r.keys) && r.keys[i].block < e.Opaque; {
		block, n, first := r.keys[i].block, 0, []byte(nil)
		for ; i < len(r.keys) && r.keys[i].block == block; i++ {
			k := r.keys[i].text
			if len(k) > 0 && (string(k) == e.Adapter || string(k) == e.Salt) {
				continue
			}
			if n++; n == 1 {
				first = k
			}
		}
		if n == 1 && block == 0 && !e.HasParent && first != nil {
			salt = string(first)
		} else if n > 0 {
			e.Opaque = block
		}
	}
	if e.Salt == "" {
		e.Salt = salt
	}
}

// Set takes a field in.
func (b *Batch) Set(f Field, v Value) (err error) {
	r := &b.reader
	e := &r.event
	switch f {
	case FieldKind:
		return r.setKind(v)
	case FieldHashes:
		return b.setHashes(v)
	case FieldTokens:
		if !v.Null() {
			b.tokens, err = v.Tokens(b.tokens)
		}
		return err
	case FieldExtraKeys:
		return ifList(v.List(func(v Value) error { return b.Set(FieldBlockKeys, v) }))
	case FieldBlockKeys:
		return r.setKeys(v)
	case FieldImages:
		return r.setImages(v)
	case FieldAdapterID:
		n, ok := v.Number()
		e.Numbered = ok && n != 0 || !ok && !v.Null()
		return nil
	case FieldParent:
		if r.split > 0 { // what was split off comes first
			e = &b.Events[len(b.Events)-r.split]
		}
		if !v.Null() {
			e.Parent, err = hash(v)
			e.HasParent = e.Parent != 0 // llm-d writes 0 where there is none
		}
		return err
	case FieldMatchable:
		n, ok := v.Number()
		r.hidden = !ok || n == 0
		return nil
	}
	return r.setPlain(f, v)
}

// setPlain takes a number or a text in; null is none.
func (r *reader) setPlain(f Field, v Value) error {
	e := &r.event
	n, isNumber := v.Number()
	text, ok := v.Text()
	switch {
	case f == NoField || v.Null():
		return nil
	case f == FieldBlockSize && isNumber:
		e.BlockSize = int(int32(min(int64(n), 1<<31-1)))
	case f == FieldGroup && isNumber:
		e.Group = int(int32(n))
	case f == FieldMedium && isNumber && r.media != nil:
		e.Medium = r.media[min(n, uint64(len(r.media)-1))]
	case f == FieldMedium && ok:
		e.Medium = string(text)
	case f == FieldAdapter && ok:
		e.Adapter = string(text)
	case f == FieldSpec && ok:
		e.Spec = string(text)
	case f == FieldSalt && ok:
		e.Salt = string(text)
	case f == FieldLocality && ok: // a medium that is not the replica's own is none of its tiers
		e.Elsewhere = len(text) > 0 && !strings.EqualFold(string(text), "LOCAL")
	default:
		return ErrType
	}
	return nil
}

func (r *reader) setKind(v Value) error {
	text, ok := v.Text()
	n, number := v.Number()
	switch {
	case !ok && !number:
		return ErrType
	case string(text) == "BlockStored", number && n == 1:
		r.event.Kind = Stored
	case string(text) == "BlockRemoved", number && n == 2:
		r.event.Kind = Removed
	case string(text) == "AllBlocksCleared", number && n == 3:
		r.event.Kind = Cleared
	}
	return nil
}

func (b *Batch) setHashes(v Value) error {
	one := func(v Value) error {
		h, err := hash(v)
		b.hashes = append(b.hashes, h)
		if err != nil {
			return err
		}
		return b.Step()
	}
	if err := v.List(one); err != ErrType { //nolint:errorlint // It is this very value.
		return err
	}
	return one(v)
}

func (r *reader) setKeys(v Value) error {
	block := r.block
	r.block++
	if v.Null() {
		return nil
	}
	err := v.List(func(v Value) error {
		text, _ := v.Text()
		r.keys = append(r.keys, extraKey{block, text})
		return nil
	})
	if errors.Is(err, ErrType) {
		r.keys, err = append(r.keys, extraKey{block, nil}), nil
	}
	return err
}

func (r *reader) setImages(v Value) error {
	block := 0
	err := v.List(func(v Value) error {
		if r.images < 0 && !v.Null() {
			r.images = block
		}
		block++
		return nil
	})
	return ifList(err)
}

// ifList makes a value that is no list none.
func ifList(err error) error {
	if errors.Is(err, ErrType) {
		return nil
	}
	return err
}

// hash reads an engine's hash: an integer of either sign, or bytes, of which the last eight count.
func hash(v Value) (h uint64, err error) {
	if n, ok := v.Number(); ok {
		return n, nil
	}
	b, ok := v.Bytes()
	if !ok {
		return 0, ErrType
	}
	if len(b) >= 8 {
		return binary.BigEndian.Uint64(b[len(b)-8:]), nil
	}
	for _, c := range b {
		h = h<<8 | uint64(c)
	}
	return h, nil
}

// Kind is the kind of the event that is being read.
func (b *Batch) Kind() Kind { return b.reader.event.Kind }
