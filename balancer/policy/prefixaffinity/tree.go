package prefixaffinity

import (
	"slices"
	"sort"
	"sync"
	"sync/atomic"
)

// A tree has the prompts that replicas hold: a radix tree of chained hashes, so that two prompts agree up to where their
// hashes do.
//
// mu guards everything below it but tenant.chars. No other lock is taken under it.
type tree struct {
	mu    sync.Mutex
	root  node
	clock uint64 // of insertions
	nodes int
	chars int64 // of all nodes
	evict int64 // how many were forgotten
}

// A node is a part of a prompt, behind that of its parent.
type node struct {
	hashes   []uint64
	size     int // characters that a hash stands for
	parent   *node
	children map[uint64]*node // by their first hash
	holders  []*entry
}

// An entry is a node that a tenant holds. It stands in the tenant's list.
type entry struct {
	node         *node
	tenant       *tenant
	used         uint64 // the insertion that used it last
	older, newer *entry
}

// A tenant is what one replica holds.
type tenant struct {
	id             string
	chars          atomic.Int64
	oldest, newest *entry
	depth          int // scratch of match
}

// A holder is a tenant that holds so many leading hashes of a prompt.
type holder struct {
	*tenant
	depth int
}

// match appends the tenants that hold a prefix of a prompt.
func (x *tree) match(path []uint64, to []holder) []holder {
	x.mu.Lock()
	defer x.mu.Unlock()
	var first *node
	for at, n := &x.root, 0; n < len(path); {
		child := at.children[path[n]]
		if child == nil {
			break
		}
		if first == nil {
			first = child
		}
		same := child.common(path[n:])
		n += same
		for _, e := range child.holders {
			e.tenant.depth = n
		}
		if at = child; same < len(child.hashes) {
			break
		}
	}
	if first != nil { // who holds what is behind holds this, too
		for _, e := range first.holders {
			to = append(to, holder{e.tenant, e.tenant.depth})
		}
	}
	return to
}

// common returns how many leading hashes of a path the node has.
func (n *node) common(path []uint64) int {
	return sort.Search(min(len(path), len(n.hashes)), func(i int) bool { return path[i] != n.hashes[i] })
}

func (n *node) of(t *tenant) *entry {
	if i := slices.IndexFunc(n.holders, func(e *entry) bool { return e.tenant == t }); i >= 0 {
		return n.holders[i]
	}
	return nil
}

func (n *node) weight() int64 { return int64(len(n.hashes) * n.size) }

// insert adds a prompt to what a tenant holds, each hash of which stands for so many characters. It returns the number
// of the insertion.
func (x *tree) insert(t *tenant, path []uint64, size int) (number uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.clock++
	for at, n := &x.root, 0; n < len(path); {
		child := at.children[path[n]]
		if child == nil {
			child = x.add(at, slices.Clone(path[n:]), size)
		} else if same := child.common(path[n:]); same < len(child.hashes) {
			child = x.split(child, same)
		}
		n += len(child.hashes)
		x.touch(child, t)
		at = child
	}
	return x.clock
}

func (x *tree) add(parent *node, hashes []uint64, size int) *node {
	n := &node{hashes: hashes, size: size, parent: parent}
	if parent.children == nil {
		parent.children = make(map[uint64]*node)
	}
	parent.children[hashes[0]] = n
	x.nodes++
	x.chars += n.weight()
	return n
}

// split cuts a node in two and returns the first part. Its holders hold both.
func (x *tree) split(n *node, at int) *node {
	front := &node{hashes: n.hashes[:at:at], size: n.size, parent: n.parent, children: map[uint64]*node{n.hashes[at]: n}}
	n.parent.children[n.hashes[0]] = front
	n.hashes, n.parent = n.hashes[at:], front
	x.nodes++
	for _, e := range n.holders {
		own := &entry{node: front, tenant: e.tenant, used: e.used}
		own.link(e, e.newer)
		front.holders = append(front.holders, own)
	}
	return front
}

// link puts an entry between two of its tenant's list; nil = at the end.
func (e *entry) link(older, newer *entry) {
	e.older, e.newer = older, newer
	if older != nil {
		older.newer = e
	} else {
		e.tenant.oldest = e
	}
	if newer != nil {
		newer.older = e
	} else {
		e.tenant.newest = e
	}
}

func (e *entry) unlink() {
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		e.tenant.oldest = e.newer
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		e.tenant.newest = e.older
	}
}

// touch notes that a tenant holds a node and uses it now.
func (x *tree) touch(n *node, t *tenant) {
	e := n.of(t)
	if e == nil {
		e = &entry{node: n, tenant: t}
		n.holders = append(n.holders, e)
		t.chars.Add(n.weight())
	} else {
		e.unlink()
	}
	e.used = x.clock
	e.link(t.newest, nil)
}

// forget takes a node from its tenant, and out of the tree if no other holds it.
func (x *tree) forget(e *entry) {
	n := e.node
	e.unlink()
	e.tenant.chars.Add(-n.weight())
	n.holders = slices.DeleteFunc(n.holders, func(o *entry) bool { return o == e })
	if len(n.holders) == 0 {
		delete(n.parent.children, n.hashes[0])
		x.nodes--
		x.chars -= n.weight()
	}
}

// shrink has a tenant forget at least so many characters: what it used least lately, and with it all that the same
// insertion used last.
func (x *tree) shrink(t *tenant, chars int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for before := t.chars.Load(); t.oldest != nil && before-t.chars.Load() < chars; {
		for used := t.oldest.used; t.oldest != nil && t.oldest.used == used; {
			x.forget(t.oldest)
			x.evict++
		}
	}
}

// remove has a tenant forget everything.
func (x *tree) remove(t *tenant) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for t.oldest != nil {
		x.forget(t.oldest)
	}
}

// undo takes an insertion back: the parts of the prompt behind the first so many hashes, unless another has used them.
func (x *tree) undo(t *tenant, path []uint64, had int, number uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var added []*entry
	for at, n := &x.root, 0; n < len(path); {
		child := at.children[path[n]]
		if child == nil || child.common(path[n:]) < len(child.hashes) {
			break
		}
		if e := child.of(t); e != nil && n >= had && e.used == number {
			added = append(added, e)
		}
		n += len(child.hashes)
		at = child
	}
	for _, e := range slices.Backward(added) {
		x.forget(e)
	}
}
