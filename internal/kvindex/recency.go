package kvindex

// recency has the lanes, and the holdings of each in the order of their last use.
type recency struct {
	nodes  slab[node]
	lanes  []lane // by slot
	victim uint16 // lane that had the oldest holding, up to tick until
	until  uint32
}

// node is the place of a holding among those of its lane, which are linked from the most to the least recently
// used. Within a holding, the highest position goes first.
type node struct {
	segment uint32
	tick    uint32 // when it was last touched
	prev    uint32
	next    uint32
	lane    uint16
}

// since returns how many ticks b is after a. Ticks are 32 bits and wrap around: what was not touched for half
// of them may be taken for younger than it is.
func since(a, b uint32) int32 { return int32(b - a) }

// link puts a node behind another one of its lane, none for the front.
func (y *recency) link(i, behind uint32) {
	n := y.nodes.at(i)
	l := &y.lanes[n.lane]
	n.prev, n.next = behind, l.first
	if behind != none {
		b := y.nodes.at(behind)
		n.next, b.next = b.next, i
	} else {
		l.first = i
	}
	if n.next != none {
		y.nodes.at(n.next).prev = i
	} else {
		l.last = i
	}
}

func (y *recency) unlink(i uint32) {
	n := y.nodes.at(i)
	l := &y.lanes[n.lane]
	if n.prev != none {
		y.nodes.at(n.prev).next = n.next
	} else {
		l.first = n.next
	}
	if n.next != none {
		y.nodes.at(n.next).prev = n.prev
	} else {
		l.last = n.prev
	}
}

// oldest returns the lane with the least recently used holding of all, noLane if there is none. tick is the latest.
func (y *recency) oldest(tick uint32) uint16 {
	if y.victim == noLane || !y.stillOldest(&y.lanes[y.victim]) {
		y.choose(tick)
	}
	return y.victim
}

// stillOldest relies on a lane's last tick never going down: until was the runner-up's when the victim
// was chosen, at most the tick of that moment, and no other lane's can be less by now.
func (y *recency) stillOldest(l *lane) bool {
	return l.n > 0 && since(y.nodes.at(l.last).tick, y.until) >= 0
}

func (y *recency) choose(tick uint32) {
	y.victim, y.until = noLane, tick
	var oldest uint32
	for i := range y.lanes {
		l := &y.lanes[i]
		if l.n == 0 {
			continue
		}
		switch last := y.nodes.at(l.last).tick; {
		case y.victim == noLane:
			y.victim, oldest = uint16(i), last
		case since(last, oldest) > 0:
			y.until, oldest = oldest, last
			y.victim = uint16(i)
		case since(last, y.until) > 0:
			y.until = last
		}
	}
}
