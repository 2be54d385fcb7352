package requestkey

import (
	"fmt"
	"slices"

	"github.com/warmpath/warmpath/balancer/dialect"
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
	slotTurn // a message: one turn of a chat
	slotRole
	slotContent
	slotMedia // a message: one or several media
	slotMediaID
	slotMediaOffset
	slotJSON
	slotUsagePrompt
	slotUsageOutput
	slotUsageCached
	slotUsageDelta
	slotUsageJSON
	numSlots
)

const (
	scalarSlots = 1<<slotRequestID | 1<<slotModel | 1<<slotAdapter | 1<<slotCacheSalt | 1<<slotMaxTokens
	turnSlots   = 1<<slotTurn | 1<<slotRole | 1<<slotContent
	mediaSlots  = 1<<slotMedia | 1<<slotMediaID | 1<<slotMediaOffset
	promptSlots = 1<<slotPrompt | 1<<slotTokens | turnSlots | mediaSlots
)

func (s slot) bit() uint32 { return 1 << s }

// maxRefs bounds the alternatives of all paths of one direction together.
const maxRefs = 24

// fields are the paths of one direction, compiled. Immutable but for the plans.
type fields struct {
	names [maxRefs]string // the dialect's field and path that a ref belongs to, for errors
	from  [numSlots]uint8 // refs of a slot: from <= ref < to, best first
	to    [numSlots]uint8
	refs  uint8
	slots uint32 // slots with at least one path
	named bool   // some path has a name
	root  node
	plans planCache
}

// A node is the part of the paths that starts in one message.
type node struct{ edges []*edge }

// An edge is a step from a message to one of its fields.
type edge struct {
	step
	leaf   int8 // ref of the value that is taken here, -1 = none
	slot   slot // of the leaf
	next   *node
	slots  uint32 // at or below this edge
	refs   uint32
	rivals uint32 // refs of the other members of the oneof
}

// add compiles a path that starts at a node: a ref for each alternative. It returns where each ends.
func (f *fields) add(at *node, name string, s slot, p dialect.Path) (ends []*edge, err error) {
	alts, err := parsePath(p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if f.from[s] = f.refs; len(alts) > 0 {
		f.slots |= s.bit()
	}
	for _, path := range alts {
		if f.refs == maxRefs {
			return nil, fmt.Errorf("%s: more than %d paths in all", name, maxRefs)
		}
		f.names[f.refs] = fmt.Sprintf("%s: %q", name, string(p))
		f.named = f.named || slices.ContainsFunc(path, func(st step) bool { return st.num == 0 })
		ends = append(ends, at.insert(path, s, f.refs))
		f.refs++
	}
	f.to[s] = f.refs
	return ends, nil
}

// group compiles a message of which several fields are read together: the path that leads to it, and those that start
// in it.
func (f *fields) group(name string, s slot, p dialect.Path, parts ...inner) error {
	ends, err := f.add(&f.root, name+".path", s, p)
	if err != nil {
		return err
	}
	if len(ends) == 0 {
		return fmt.Errorf("%s.path: it is not set", name)
	}
	inside := &node{}
	for _, x := range parts {
		if _, err := f.add(inside, name+"."+x.name, x.slot, x.path); err != nil {
			return err
		}
	}
	for _, e := range ends {
		e.next = inside
	}
	f.root.sum()
	return nil
}

// An inner is a field inside a group.
type inner struct {
	name string
	slot slot
	path dialect.Path
}

// insert adds a path to the tree and returns its last edge.
func (n *node) insert(path []step, s slot, ref uint8) *edge {
	for i, st := range path {
		e := n.edge(st, i == len(path)-1)
		e.slots |= s.bit()
		e.refs |= 1 << ref
		if i == len(path)-1 {
			e.leaf, e.slot = int8(ref), s
			return e
		}
		n = e.next
	}
	return nil
}

// edge returns an inner edge of a step, which paths share, or a new one for a leaf.
func (n *node) edge(st step, leaf bool) *edge {
	for i := range n.edges {
		if e := n.edges[i]; !leaf && e.step == st && e.leaf < 0 {
			return e
		}
	}
	e := &edge{step: st, leaf: -1}
	if !leaf {
		e.next = &node{}
	}
	n.edges = append(n.edges, e)
	return e
}

// sum brings slots and refs up from the edges below.
func (n *node) sum() (slots, refs uint32) {
	if n == nil {
		return 0, 0
	}
	for _, e := range n.edges {
		below, more := e.next.sum()
		e.slots |= below
		e.refs |= more
		slots |= e.slots
		refs |= e.refs
	}
	return slots, refs
}

// exclude makes the top-level fields of a group rivals.
func (n *node) exclude(group []int32) {
	for _, a := range n.edges {
		for _, b := range n.edges {
			if a.num != b.num && slices.Contains(group, a.num) && slices.Contains(group, b.num) {
				a.rivals |= b.refs
			}
		}
	}
}
