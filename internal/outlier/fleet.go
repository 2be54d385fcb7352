package outlier

import (
	"sync/atomic"
	"time"
)

// fleet is the membership, and how many members are in which state. The Detector's lock guards it; the atomic
// numbers are read without it.
type fleet struct {
	unhealthy atomic.Int64  // members that are not Healthy
	changes   atomic.Uint64 // what replicas admit may have changed
	freed     atomic.Uint64 // … and requests that wait are to choose again

	members   []*Replica
	connected int       // members that are
	outs      int       // members that are out
	upSince   time.Time // since when any replica is connected
}

// join makes a replica a member.
func (f *fleet) join(r *Replica) {
	if !r.member {
		r.member, r.place = true, len(f.members)
		f.members = append(f.members, r)
		f.count(r, 1)
	}
}

// leave takes a member out.
func (f *fleet) leave(r *Replica) {
	last := len(f.members) - 1
	moved := f.members[last]
	f.members[r.place], moved.place = moved, r.place
	f.members[last] = nil
	f.members, r.member = f.members[:last], false
}

// connect notes that the connection of a member comes or goes, and reports whether that is new.
func (f *fleet) connect(r *Replica, up bool, now time.Time) bool {
	if r.connected == up {
		return false
	}
	r.connected = up
	if up {
		if f.connected == 0 && f.upSince.IsZero() {
			f.upSince = now
		}
		f.connected++
		return true
	}
	r.lost = now
	if f.connected--; f.connected == 0 {
		f.upSince = time.Time{}
	}
	return true
}

// change puts a change of a replica's state into force. All changes of state go through it.
func (f *fleet) change(r *Replica, do func()) {
	f.count(r, -1)
	do()
	f.count(r, 1)
	f.readmit(r)
}

// readmit gives the host what the replica admits now.
func (f *fleet) readmit(r *Replica) {
	r.host.Admit(r.admits())
	f.changes.Add(1)
}

// count keeps the numbers of members that are not healthy, and that are out.
func (f *fleet) count(r *Replica, n int) {
	if r.member && r.effective() != Healthy {
		f.unhealthy.Add(int64(n))
	}
	if r.member && r.out() {
		f.outs += n
	}
}

// free lets requests that wait choose again.
func (f *fleet) free() {
	f.freed.Add(1)
	f.changes.Add(1)
}
