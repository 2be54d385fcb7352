package dialect

import (
	"fmt"
	"math/bits"
	"slices"
)

// A slot is what a field means.
type slot uint8

const (
	slotRequestID slot = iota
	slotSession
	slotModel
	slotAdapter
	slotCacheSalt
	slotMaxTokens
	slotRank
	slotPrompt
	slotTokens
	slotMessages
	slotJSON
	slotUsagePrompt
	slotUsageOutput
	slotUsageCached
	slotUsageDelta
	slotUsageJSON
	numSlots
)

func (s slot) bit() uint32 { return 1 << s }

// maxRefs bounds the alternatives of all paths of one direction together.
const maxRefs = 20

// A leaf is one alternative of the path of a slot. Its ref is where a value read
// for it goes.
type leaf struct {
	slot  slot
	ref   uint8
	path  []step
	parts []leaf // role and content of slotMessages; their paths start at the turn
}

// fields are the paths of one direction, compiled. Immutable but for the plans.
type fields struct {
	leaves []leaf
	from   [numSlots]uint8 // refs of a slot: from <= ref < to, best first
	to     [numSlots]uint8
	refs   uint8
	slots  uint32 // slots with at least one path
	root   node
	plans  planCache
}

func (f *fields) add(name string, s slot, p Path) error {
	alts, err := p.parse()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if f.from[s] = f.refs; len(alts) > 0 {
		f.slots |= s.bit()
	}
	for _, path := range alts {
		f.leaves = append(f.leaves, leaf{slot: s, ref: f.refs, path: path})
		f.refs++
	}
	if f.to[s] = f.refs; f.refs > maxRefs {
		return fmt.Errorf("%s: more than %d paths in all", name, maxRefs)
	}
	return nil
}

// leaf returns the first alternative of a slot that has one.
func (f *fields) leaf(s slot) *leaf {
	return &f.leaves[slices.IndexFunc(f.leaves, func(l leaf) bool { return l.slot == s })]
}

func (f *fields) addMessages(m *Messages) error {
	if m == nil {
		return nil
	}
	turns, err := single("messages.path", m.Path)
	if err != nil {
		return err
	}
	turns[len(turns)-1].list = true
	l := leaf{slot: slotMessages, ref: f.refs, path: turns}
	for i, p := range []Path{m.Role, m.Content} {
		path, err := single([]string{"messages.role", "messages.content"}[i], p)
		if err != nil {
			return err
		}
		l.parts = append(l.parts, leaf{slot: slotMessages, ref: f.refs + uint8(i), path: path})
	}
	if f.refs += 2; f.refs > maxRefs {
		return fmt.Errorf("messages: more than %d paths in all", maxRefs)
	}
	f.leaves = append(f.leaves, l)
	f.slots |= slotMessages.bit()
	return nil
}

// single parses a path that has exactly one alternative.
func single(name string, p Path) ([]step, error) {
	alts, err := p.parse()
	if err == nil && len(alts) != 1 {
		err = fmt.Errorf("%q: want exactly one path", string(p))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return alts[0], nil
}

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

	chat []byte
	// borrowed says that strings share memory which is reused after the call.
	borrowed bool
}

type value struct {
	text   string
	num    int64
	sum    int64
	number bool
}

func (v *values) wants(s slot) bool { return v.need&s.bit() != 0 }

func (v *values) putText(ref uint8, s string) {
	v.val[ref].text, v.val[ref].number = s, false
	v.set |= 1 << ref
}

func (v *values) putNum(ref uint8, n int64) {
	v.val[ref].num, v.val[ref].number = n, true
	v.set |= 1 << ref
}

// pushText adds an element of a list of texts.
func (v *values) pushText(ref uint8, s string) {
	switch {
	case v.nbatch == 0 || ref < v.batchRef:
		v.batch, v.more, v.batchRef, v.nbatch = s, v.more[:0], ref, 1
	case ref == v.batchRef:
		v.more = append(v.more, s)
		v.nbatch++
	}
}

// pushNum adds an element of a list of counts.
func (v *values) pushNum(ref uint8, n int64) {
	if _, ok := count(n); ok {
		v.val[ref].sum += n
		v.sums |= 1 << ref
	}
}

// flush ends a message in a list: the scalars read of it become elements.
func (v *values) flush(refs uint32) {
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

// flushTurn ends a chat turn, read into ref and ref+1.
func (v *values) flushTurn(ref uint8) {
	role, _ := v.text(ref)
	content, _ := v.text(ref + 1)
	v.chat = appendTurn(v.chat, role, content)
	v.set &^= 3 << ref
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

// batchToken stands between the prompts of a batch of token ids.
const batchToken = 1<<32 - 1
