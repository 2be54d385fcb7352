package kvevents

// resumer keeps the messages of one gRPC stream in order, over its re-openings. It identifies an engine
// again by the message that was applied last: a stream is opened again at that one. It belongs to one goroutine.
type resumer struct {
	apply func(seq uint64, payload []byte)
	clear func()
	count *Followed
	// snapshots: a stream opened afresh begins with all that is held, in batches of one number.
	snapshots bool

	any      bool
	next     uint64 // number that comes next
	print    uint64 // of the message before it
	before   uint64 // of the message before that one; 0 where it is not known
	resuming bool   // the next message is to be the one applied last
	initial  bool   // nothing but a snapshot came yet
	gap      bool   // the stream was opened again because of the gap before next

	ranks   map[int]uint64 // number applied last
	perRank bool           // every rank counts by itself
}

// open is called before the stream is opened: the number that it is to begin with, and whether it is afresh.
func (r *resumer) open() (start uint64, fresh bool) {
	if r.any && r.perRank {
		r.lost() // one number cannot say where every rank was
	}
	if r.resuming = r.any; r.any {
		return r.next - 1, false
	}
	r.initial = r.snapshots
	return 0, true
}

// accept takes a message; print is a hash of its content, 0 if that is empty. It returns true if the stream must be
// opened again.
func (r *resumer) accept(seq uint64, rank int, payload []byte, print uint64) (again bool) {
	if r.resuming {
		return r.resume(seq, rank, payload, print)
	}
	switch {
	case print == 0 && r.repeats(seq, rank): // only to show that it is alive
		return false
	case !r.any, seq == r.next, r.initial && seq == r.next-1:
	case r.ownNumber(seq, rank):
		r.perRank = true
	case seq < r.next:
		r.restarted()
		return true
	case !r.gap:
		r.count.Gaps++
		r.gap = true
		return true
	default:
		r.lost()
	}
	r.take(seq, rank, payload, print)
	return false
}

// repeats reports whether the number is the last one, of all or of its rank.
func (r *resumer) repeats(seq uint64, rank int) bool {
	last, known := r.ranks[rank]
	return r.any && (seq == r.next-1 || known && seq == last)
}

// ownNumber reports whether the number is the next of its rank, which counts by itself.
func (r *resumer) ownNumber(seq uint64, rank int) bool {
	last, known := r.ranks[rank]
	return known && seq == last+1 && (r.perRank || len(r.ranks) > 1) || !known && seq <= 1
}

// resume takes the first messages of a stream that was opened again, up to the one applied last.
func (r *resumer) resume(seq uint64, rank int, payload []byte, print uint64) (again bool) {
	if print == 0 && r.print != 0 && seq == r.next-1 {
		return false // that does not identify the engine
	}
	if seq+2 == r.next && (r.before == 0 || r.before == print) {
		return false // some send one more
	}
	r.resuming = false
	switch {
	case seq == r.next-1 && print == r.print:
		return false
	case seq == r.next-1, seq+2 == r.next:
		r.restarted()
		return true
	case seq > r.next-1:
		r.lost()
		return true
	}
	r.restarted()
	if r.snapshots {
		return true
	}
	r.take(seq, rank, payload, print) // it began anew with the oldest it has
	return false
}

// unconfirmed is called when the engine does not repeat its last message.
func (r *resumer) unconfirmed() {
	if r.resuming {
		r.resuming = false
		r.lost()
	}
}

func (r *resumer) take(seq uint64, rank int, payload []byte, print uint64) {
	if r.any && seq != r.next-1 {
		r.initial = false
	}
	if r.before = 0; r.any && seq == r.next {
		r.before = r.print
	}
	r.apply(seq, payload)
	r.any, r.gap, r.next, r.print = true, false, seq+1, print
	if r.ranks == nil {
		r.ranks = make(map[int]uint64)
	}
	if rank >= 0 && rank < maxRanks {
		r.ranks[rank] = seq
	}
}

func (r *resumer) lost() {
	r.count.Clears++
	r.clear()
	r.any, r.next, r.perRank, r.gap = false, 0, false, false
	clear(r.ranks)
}

func (r *resumer) restarted() {
	r.count.Restarts++
	r.lost()
}
