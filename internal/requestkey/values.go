package requestkey

import (
	"encoding/hex"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// values is what was read of one message.
type values struct {
	need uint32 // slots wanted
	set  uint32 // refs that have a value in val
	sums uint32 // refs that have a value in val.sum
	val  [maxRefs]value

	tokens    []uint32
	tokensRef uint8
	nextBatch bool // the next token id belongs to another prompt

	batch    string // first of a list of texts
	more     []string
	nbatch   int
	batchRef uint8

	chat     []byte // the turns, rendered
	turn     []byte // the content of the turn that is being read
	readable bool   // some turn had a content
	unread   bool   // some turn has a content that cannot be read

	media   []medium
	ids     []string // of the media in the message that is being read
	offsets []int64

	// borrowed: strings share memory which is reused after the call.
	borrowed bool
}

type value struct {
	text   string
	num    int64
	sum    int64
	number bool
}

// text takes a text: a field of its own, or an element of a list.
func (v *values) text(e *edge, s string, element bool) {
	switch ref := uint8(e.leaf); {
	case e.slot == slotTokens || e.slot == slotMediaOffset:
	case e.slot == slotContent:
		if s != "" {
			v.turn = appendField(v.turn, 't', s)
		}
	case e.slot == slotMediaID:
		v.ids = append(v.ids, s)
	case element:
		v.pushText(ref, s)
	default:
		v.val[ref].text, v.val[ref].number = s, false
		v.set |= 1 << ref
	}
}

// num takes a number likewise.
func (v *values) num(e *edge, n int64, element bool) {
	switch ref := uint8(e.leaf); {
	case e.slot == slotTokens:
		if dst := v.tokensFor(ref); dst != nil {
			*dst = append(*dst, uint32(n))
		}
	case e.slot == slotContent || e.slot == slotMediaID:
		v.text(e, strconv.FormatInt(n, 10), element)
	case e.slot == slotMediaOffset:
		v.offsets = append(v.offsets, n)
	case element:
		v.pushNum(ref, n)
	default:
		v.val[ref].num, v.val[ref].number = n, true
		v.set |= 1 << ref
	}
}

func (v *values) pushText(ref uint8, s string) {
	switch {
	case v.nbatch == 0 || ref < v.batchRef:
		v.batch, v.more, v.batchRef, v.nbatch = s, v.more[:0], ref, 1
	case ref == v.batchRef:
		v.more = append(v.more, s)
		v.nbatch++
	}
}

func (v *values) pushNum(ref uint8, n int64) {
	if _, ok := count(n); ok {
		v.val[ref].sum += n
		v.sums |= 1 << ref
	}
}

// tokensFor returns where token ids of ref go, nil when better ones are there.
func (v *values) tokensFor(ref uint8) *[]uint32 {
	if len(v.tokens) > 0 && ref > v.tokensRef {
		return nil
	}
	if ref != v.tokensRef {
		v.tokens, v.tokensRef, v.nextBatch = nil, ref, false
	}
	if v.nextBatch {
		v.tokens, v.nextBatch = append(v.tokens, batchToken), false
	}
	return &v.tokens
}

// alias takes token ids without copying them, but in a batch.
func (v *values) alias(ref uint8, ids []uint32) {
	switch dst := v.tokensFor(ref); {
	case dst == nil || len(ids) == 0:
	case len(*dst) == 0:
		*dst = slices.Clip(ids)
	default:
		*dst = append(*dst, ids...)
	}
}

// batchToken stands between the prompts of a batch of token ids.
const batchToken = 1<<32 - 1

// element ends a message in a list: the scalars read of it become elements.
func (v *values) element(refs uint32) {
	for m := refs & v.set; m != 0; m &= m - 1 {
		ref := uint8(bits.TrailingZeros32(m))
		if x := &v.val[ref]; x.number {
			v.pushNum(ref, x.num)
		} else {
			v.pushText(ref, x.text)
		}
	}
	v.set &^= refs
	if refs&(1<<v.tokensRef) != 0 {
		v.nextBatch = len(v.tokens) > 0
	}
}

// clear forgets what was read for refs: another member of the oneof came later.
func (v *values) clear(refs uint32) {
	v.set &^= refs
	v.sums &^= refs
	for m := refs; m != 0; m &= m - 1 {
		v.val[bits.TrailingZeros32(m)].sum = 0
	}
	if refs&(1<<v.tokensRef) != 0 {
		v.tokens = nil
	}
	if refs&(1<<v.batchRef) != 0 {
		v.nbatch, v.batch, v.more = 0, "", nil
	}
}

// endMessage ends a message that is a leaf: a chat turn, or one that holds media.
func (v *values) endMessage(f *fields, e *edge, m message) {
	switch e.slot {
	case slotTurn:
		v.endTurn(f, m)
	case slotMedia:
		v.endMedia(m)
	}
}

// endTurn ends a chat turn. Of one without a content the whole message stands in its place, where there is more in it
// than the role: a call of a tool, say.
func (v *values) endTurn(f *fields, m message) {
	role, _ := v.first(f, slotRole)
	refs := uint32(1)<<f.to[slotRole] - uint32(1)<<f.from[slotRole]
	v.set &^= refs
	v.chat = appendText(append(v.chat, frameTurn), role)
	switch {
	case len(v.turn) > 0:
		v.chat, v.readable = append(v.chat, v.turn...), true
	case m.populated() > 1 || role == "" && m.populated() > 0:
		v.chat, v.readable = appendMedium(v.chat, "turn", alias(m.encoded())), true
	default:
		v.chat = appendField(v.chat, 't', "")
	}
	v.turn = v.turn[:0]
}

// mark is how far lists of which every element counts had come before an element.
type mark struct{ turn, offsets int }

func (v *values) mark() mark { return mark{len(v.turn), len(v.offsets)} }

// endElement ends a message in a list that leads further.
func (v *values) endElement(e *edge, before mark, m message) {
	v.element(e.refs)
	if v.wants(e, slotContent) && len(v.turn) == before.turn && m.populated() > 0 {
		v.unread = true
	}
	if v.wants(e, slotMediaOffset) && len(v.offsets) == before.offsets {
		v.offsets = append(v.offsets, 0) // which is not encoded
	}
}

func (v *values) wants(e *edge, s slot) bool { return e.slots&v.need&s.bit() != 0 }

// A message is one in either shape.
type message struct {
	typed protoreflect.Message // nil = raw
	raw   []byte
}

// populated returns the number of fields that are set.
func (m message) populated() (n int) {
	if m.typed != nil {
		m.typed.Range(func(protoreflect.FieldDescriptor, protoreflect.Value) bool { n++; return true })
		return n + min(len(m.typed.GetUnknown()), 1)
	}
	for b := m.raw; len(b) > 0; n++ {
		_, _, size := protowire.ConsumeField(b)
		if size < 0 {
			break
		}
		b = b[size:]
	}
	return n
}

// encoded returns the message in wire format, the same for equal messages.
func (m message) encoded() []byte {
	if m.typed == nil {
		return m.raw
	}
	b, _ := proto.MarshalOptions{Deterministic: true, AllowPartial: true}.Marshal(m.typed.Interface())
	return b
}

// appendMedium appends the hash of something whose content is not text.
func appendMedium(dst []byte, kind, content string) []byte {
	sum := xxh3.HashString128(content).Bytes()
	return hex.AppendEncode(append(appendField(dst, 'm', kind), ' '), sum[:])
}

// of returns the text read for a ref; numbers other than 0 are written out.
func (v *values) of(ref uint8) (string, bool) {
	x := &v.val[ref]
	switch {
	case v.set&(1<<ref) == 0:
		return "", false
	case !x.number:
		return x.text, true
	case x.num != 0:
		return strconv.FormatInt(x.num, 10), true
	}
	return "", false
}

// first returns the text of the best alternative of a slot that has one.
func (v *values) first(f *fields, s slot) (string, bool) {
	for ref := f.from[s]; ref < f.to[s]; ref++ {
		if text, ok := v.of(ref); ok && text != "" {
			return text, true
		}
	}
	return "", false
}

// fill sets dst, if it is empty, to the text of a slot.
func (v *values) fill(dst *string, f *fields, s slot) {
	if *dst != "" || v.set == 0 {
		return
	}
	if text, ok := v.first(f, s); ok {
		*dst = text
		if v.borrowed {
			*dst = strings.Clone(text)
		}
	}
}

// session returns the best session that is text: what a field that once was a message holds is passed over.
func (v *values) session(f *fields) string {
	for ref := f.from[slotSession]; ref < f.to[slotSession]; ref++ {
		if text, ok := v.of(ref); ok && text != "" && utf8.ValidString(text) && !strings.ContainsFunc(text, isControl) {
			if v.borrowed {
				text = strings.Clone(text)
			}
			return text
		}
	}
	return ""
}

func isControl(r rune) bool { return r < ' ' }

// count returns the count of the best alternative of a slot that has one.
func (v *values) count(f *fields, s slot) (int, bool) {
	for ref := f.from[s]; ref < f.to[s]; ref++ {
		x := &v.val[ref]
		switch {
		case v.sums&(1<<ref) != 0:
			return count(x.sum)
		case v.set&(1<<ref) == 0:
		case x.number:
			return count(x.num)
		default:
			return parseCount(x.text)
		}
	}
	return 0, false
}

// count returns n if it can be a number of tokens.
func count(n int64) (int, bool) {
	if n < 0 || n > math.MaxInt32 {
		return 0, false
	}
	return int(n), true
}

func parseCount(s string) (int, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, false
	}
	return count(n)
}
