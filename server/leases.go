package server

import (
	"container/heap"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A lease is the load of a pick, until it is released or expires.
type lease struct {
	id     string    // of the reservation; "" = no report can name it
	name   leaseName // of a pick that may be repeated
	length time.Duration
	next   time.Time // of the prompt's share, or of the whole
	ends   time.Time
	place  int  // in the heap; -1 = in none
	learns bool // the policy learns the outcome

	replica     uint32      // its number
	counts      replicaLoad // the lease's share of leases.whole: zero before it is held and after it is removed
	q           policy.Request
	reservation router.Reservation

	// made is closed once answer or err is set; nil for a pick that cannot be repeated.
	made   chan struct{}
	answer *warmpathv1.ChooseReplicaResponse
	err    error
}

// A leaseName identifies a repeated request. Without a request id there is none.
type leaseName struct {
	by      *principal
	request string // its id
	attempt uint64
}

// leases are those of one deployment.
type leases struct {
	prefix string // of the ids

	// mu guards what is below. Routers' locks are taken under it.
	mu      sync.Mutex
	due     queue
	byID    map[string]*lease
	byName  map[leaseName]*lease
	whole   map[uint32]replicaLoad // by number of the replica: the load held, as if no prompt were cached
	max     int
	pending int // begun and not in the heap
	closed  bool

	expired atomic.Int64 // reservations that ended with their lease
}

var (
	errLeases          = errors.New("max_reservations are held in this deployment: release them, or raise it")
	errPrincipalLeases = errors.New("the principal has half of max_reservations: release them, or raise it")
	errFault           = errors.New("the server failed in this pick")
)

// held returns how many there are.
func (l *leases) held() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.due) + l.pending
}

// limit sets how many there may be.
func (l *leases) limit(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.max = n
}

// begin makes room for a lease. If one of this name exists or is being made, that one is returned.
func (l *leases) begin(name leaseName) (x *lease, repeated bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x := l.byName[name]; name.request != "" && x != nil {
		return x, true, nil
	}
	if l.closed {
		return nil, false, router.ErrClosed
	}
	if len(l.due)+l.pending >= l.max {
		return nil, false, errLeases
	}
	if !take(&name.by.held, name.by.rules.Load().maxHeld) {
		return nil, false, errPrincipalLeases
	}
	l.pending++
	x = &lease{name: name, place: -1}
	if name.request != "" {
		if l.byName == nil {
			l.byName = make(map[leaseName]*lease)
		}
		l.byName[name] = x
		x.made = make(chan struct{})
	}
	return x, false, nil
}

// fail gives back the room of a lease whose pick failed. The error goes to the calls that wait for it.
func (l *leases) fail(x *lease, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending--
	l.settle(x, nil, err)
	l.forget(x)
}

// hold puts a lease into force, with an id if it is reserved. The prompt's share of any other ends after a fifth of
// its length, since the end of its prefill is not reported.
func (l *leases) hold(x *lease, reserved bool, length time.Duration, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending--
	if l.closed {
		x.name.by.held.Add(-1)
		x.reservation.Release()
		return
	}
	x.length, x.ends = length, now.Add(length)
	x.next = x.ends
	if !reserved {
		x.next = now.Add(length / 5)
	} else {
		var secret [12]byte
		_, _ = rand.Read(secret[:])
		x.id = l.prefix + hex.EncodeToString(secret[:])
		if l.byID == nil {
			l.byID = make(map[string]*lease)
		}
		l.byID[x.id] = x
	}
	heap.Push(&l.due, x)
	l.count(x, replicaLoad{1, int64(min(x.q.PromptTokens, maxTokens))})
}

// count sets a lease's share of whole. Called with mu held.
func (l *leases) count(x *lease, now replicaLoad) {
	sum := l.whole[x.replica]
	sum.add(x.counts, -1)
	sum.add(now, 1)
	x.counts = now
	if sum == (replicaLoad{}) {
		delete(l.whole, x.replica)
		return
	}
	if l.whole == nil {
		l.whole = make(map[uint32]replicaLoad)
	}
	l.whole[x.replica] = sum
}

// uncached returns the load held on each replica, by its number, as if no prompt were cached.
func (l *leases) uncached() map[uint32]replicaLoad {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.whole)
}

// settled gives the answer to the calls that wait for the lease.
func (l *leases) settled(x *lease, answer *warmpathv1.ChooseReplicaResponse) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle(x, answer, nil)
}

func (l *leases) settle(x *lease, answer *warmpathv1.ChooseReplicaResponse, err error) {
	if x.made != nil {
		x.answer, x.err = answer, err
		close(x.made)
	}
}

// forget removes a lease. Called with mu held.
func (l *leases) forget(x *lease) {
	x.name.by.held.Add(-1)
	l.count(x, replicaLoad{})
	delete(l.byID, x.id)
	if x.name.request != "" && l.byName[x.name] == x {
		delete(l.byName, x.name)
	}
	if x.place >= 0 {
		heap.Remove(&l.due, x.place)
	}
}

// renew extends a reservation; once prefilled, its prompt no longer counts. It returns nil if there is none.
func (l *leases) renew(id string, prefilled bool, now time.Time) *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.byID[id]
	if x == nil {
		return nil
	}
	x.ends = now.Add(x.length)
	x.next = x.ends
	heap.Fix(&l.due, x.place)
	if prefilled {
		l.count(x, replicaLoad{1, 0})
	}
	return x
}

// end removes a reservation. It returns nil if there is none: a reservation ends once.
func (l *leases) end(id string) *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.byID[id]
	if x != nil {
		l.forget(x)
	}
	return x
}

// expire ends the shares and the leases that are due.
func (l *leases) expire(now time.Time) {
	for {
		x, over := l.pop(now)
		switch {
		case x == nil:
			return
		case !over:
			x.reservation.PrefillDone()
		default:
			if x.id != "" {
				l.expired.Add(1)
			}
			x.release(policy.Outcome{Sent: true, Fault: policy.GivenUp, Usage: policy.NoUsage})
		}
	}
}

func (l *leases) pop(now time.Time) (x *lease, over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.due) == 0 || now.Before(l.due[0].next) {
		return nil, false
	}
	x = l.due[0]
	if x.next.Before(x.ends) {
		x.next = x.ends
		heap.Fix(&l.due, 0)
		l.count(x, replicaLoad{1, 0})
		return x, false
	}
	l.forget(x)
	return x, true
}

// release gives back the load, and reports the outcome to a policy that learns.
func (x *lease) release(o policy.Outcome) {
	x.reservation.Release()
	if x.learns {
		x.reservation.Router().Complete(&x.q, x.reservation.Decision, o)
	}
}

// close releases everything.
func (l *leases) close() {
	l.mu.Lock()
	all := l.due
	l.due, l.byID, l.byName, l.whole, l.closed = nil, nil, nil, nil, true
	l.mu.Unlock()
	for _, x := range all {
		x.name.by.held.Add(-1)
		x.reservation.Release()
	}
}

// queue is a heap of leases by next.
type queue []*lease

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].next.Before(q[j].next) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push implements [heap.Interface].
func (q *queue) Push(x any) {
	x.(*lease).place = len(*q)
	*q = append(*q, x.(*lease))
}

// Pop implements [heap.Interface].
func (q *queue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	x.place = -1
	return x
}
