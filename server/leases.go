package server

import (
	"container/heap"
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/endpoint"
	"github.com/warmpath/warmpath/internal/router"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const (
	// maxLease is how long a reservation lasts without a report on it, unless the request asks for less.
	maxLease = time.Minute
	// countedHold is how long a pick of mode count adds to the load, queryHold one of mode query.
	countedHold, queryHold = 10 * time.Second, 500 * time.Millisecond
	// staleAfter is the age at which a report no longer counts as fresh: load that rests on it is marked as stale.
	staleAfter = 3 * time.Second
)

// A lease is the load of a pick, until it is released or expires.
type lease struct {
	id        string    // of the reservation; "" = no report can name it
	name      leaseName // of a pick that may be repeated
	length    time.Duration
	fades     time.Time // when the prompt no longer counts; zero = only its end is reported
	ends      time.Time
	began     time.Duration // after leases.first
	place     int           // in the queue; -1 = the pick is being made, or the lease is over
	prefilled bool          // the prompt no longer counts
	waits     bool          // the pick waits for room
	learns    bool          // the policy learns the outcome
	teller    teller

	replica     uint32 // its number
	q           policy.Request
	reservation router.Reservation
	prefill     *router.Reservation // of the prefill leg; nil = the request is not split

	// made is closed once the pick is made or has failed; nil for one that cannot be repeated.
	made   chan struct{}
	answer *warmpathv1.ChooseReplicaResponse // nil = it has failed
}

// A leaseName identifies a repeated request. Without a request id there is none.
type leaseName struct {
	by      *principal
	request string // its id
	attempt uint64
}

// leases are those of one deployment.
type leases struct {
	prefix string     // of the ids
	max    func() int // how many there may be

	// mu guards what is below. Routers' locks are taken under it.
	mu     sync.Mutex
	count  int   // begun and neither failed nor over
	due    queue // those in force
	byID   map[string]*lease
	byName map[leaseName]*lease
	load   map[uint32]replicaLoad // of those in force by number of the replica, as if no prompt were cached
	told   map[teller]*told
	first  time.Time // when the first one began
	began  int64     // sum of those in force, in milliseconds
	closed bool

	expired atomic.Int64 // reservations that ended with their lease
}

var (
	errLeases          = errors.New("max_reservations are held in this deployment: release them, or raise it")
	errPrincipalLeases = errors.New("the principal has half of max_reservations: release them, or raise it")
	errDeployment      = errors.New("the principal may not use it any more")
)

func newLeases(deployment string, max func() int) leases {
	return leases{
		prefix: deployment + "#", max: max, load: make(map[uint32]replicaLoad), told: make(map[teller]*told),
		byID: make(map[string]*lease), byName: make(map[leaseName]*lease),
	}
}

// held returns how many there are.
func (l *leases) held() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// room is about how long it takes until there is room for one more request, behind others that wait: requests under way
// last as much longer, on average, as they have lasted.
func (l *leases) room(waiting int, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := int64(len(l.due))
	if n == 0 {
		return 0
	}
	age := now.Sub(l.first) - time.Duration(l.began/n)*time.Millisecond
	return age / time.Duration(n) * time.Duration(waiting+1)
}

// loads returns the load of all of them, as load has it.
func (l *leases) loads() map[uint32]replicaLoad {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.load)
}

// claim makes room for a lease. It returns none on an error, and where a call of the same name has got an answer.
func (l *leases) claim(
	ctx context.Context, name leaseName, waits bool,
) (x *lease, again *warmpathv1.ChooseReplicaResponse, err error) {
	for {
		x, repeated, err := l.begin(name, waits)
		if !repeated {
			return x, nil, err
		}
		if again, err = x.again(ctx, waits); again != nil || err != nil {
			return nil, again, err
		}
	}
}

// begin makes room for a lease. If one of this name exists or is being made, that one is returned.
func (l *leases) begin(name leaseName, waits bool) (x *lease, repeated bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch x := l.byName[name]; {
	case x != nil:
		return x, true, nil
	case l.closed:
		return nil, false, router.ErrClosed
	case l.count >= l.max():
		return nil, false, errLeases
	case !take(&name.by.held, name.by.rules.Load().maxHeld):
		return nil, false, errPrincipalLeases
	}
	x = &lease{name: name, waits: waits, place: -1}
	l.count++
	if name.request != "" {
		l.byName[name] = x
		x.made = make(chan struct{})
	}
	return x, false, nil
}

// fail gives back the room of a lease whose pick failed. Of the calls that wait for it another one is the first then.
func (l *leases) fail(x *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	x.settle(nil)
	l.forget(x)
}

// hold puts a lease into force, and gives the answer to the calls that wait for it, with the reservation if it is
// reserved. The prompt's share of any other ends after a fifth of its length, since the end of its prefill is not
// reported. o is what the caller tells of its requests, or nil.
func (l *leases) hold(
	x *lease, a *warmpathv1.ChooseReplicaResponse, reserved bool, length time.Duration, now time.Time, o *endpoint.Ongoing,
) {
	l.mu.Lock()
	defer l.mu.Unlock()
	x.length, x.ends = length, now.Add(length)
	if !reserved {
		x.fades = now.Add(length / 5)
	} else {
		x.id = l.prefix + rand.Text()
		a.Reservation = &warmpathv1.Reservation{Id: x.id, LeaseMs: uint32(length.Milliseconds())}
	}
	if l.first.IsZero() {
		l.first = now
	}
	x.began = now.Sub(l.first)
	x.settle(a)
	if l.closed {
		l.forget(x)
		x.giveBack()
		return
	}
	if reserved {
		l.byID[x.id] = x
	}
	heap.Push(&l.due, x)
	l.began += x.began.Milliseconds()
	l.add(x, 1)
	if o != nil {
		l.tell(x, o, a.GetReplica().GetId())
	}
}

// add adds a lease's load to the sums, or takes it off. Called with mu held.
func (l *leases) add(x *lease, sign int64) {
	load := replicaLoad{ongoing: 1}
	if !x.prefilled {
		load.tokens = int64(min(x.q.PromptTokens, maxTokens))
		if x.prefill != nil {
			l.addTo(numberOf(x.prefill.Decision.Replica), load, sign)
			load.tokens = 0
		}
	}
	l.addTo(x.replica, load, sign)
}

func (l *leases) addTo(replica uint32, load replicaLoad, sign int64) {
	sum := l.load[replica]
	sum.add(load, sign)
	put(l.load, replica, sum)
}

// prefilled ends the prompt's share of a lease. Called with mu held.
func (l *leases) prefilled(x *lease) {
	l.add(x, -1)
	x.prefilled = true
	l.add(x, 1)
}

// settle gives the answer, nil = none, to the calls that wait for the lease. Called once.
func (x *lease) settle(answer *warmpathv1.ChooseReplicaResponse) {
	if x.made != nil {
		x.answer = answer
		close(x.made)
	}
}

// again is the answer to the first call of the lease's name, once it is made; nil where that call has failed. A call
// that does not wait for room fails where the first call may be waiting for it.
func (x *lease) again(ctx context.Context, waits bool) (*warmpathv1.ChooseReplicaResponse, error) {
	select {
	case <-x.made:
	default:
		if x.waits && !waits {
			return nil, router.ErrFull
		}
		select {
		case <-x.made:
		case <-ctx.Done():
			return nil, router.ErrFull
		}
	}
	if x.answer == nil {
		return nil, nil
	}
	a := proto.CloneOf(x.answer)
	a.Reservation.Repeated = true
	return a, nil
}

// forget removes a lease. Called with mu held.
func (l *leases) forget(x *lease) {
	l.count--
	x.name.by.held.Add(-1)
	if x.place >= 0 {
		heap.Remove(&l.due, x.place)
		l.began -= x.began.Milliseconds()
		l.add(x, -1)
	}
	l.untell(x)
	delete(l.byID, x.id)
	if l.byName[x.name] == x {
		delete(l.byName, x.name)
	}
}

// renew extends a reservation; once prefilled, its prompt no longer counts. It returns nil if there is none, and
// whether it is prefilled for the first time.
func (l *leases) renew(id string, prefilled bool, now time.Time) (x *lease, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x = l.byID[id]; x == nil {
		return nil, false
	}
	x.ends = now.Add(x.length)
	heap.Fix(&l.due, x.place)
	if first = prefilled && !x.prefilled; first {
		l.prefilled(x)
	}
	return x, first
}

// counts makes a reservation a pick of mode count: there will be no more reports on it.
func (l *leases) counts(id string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.byID[id]
	if x == nil {
		return
	}
	delete(l.byID, id)
	x.id, x.fades, x.ends = "", now.Add(countedHold/5), now.Add(countedHold)
	heap.Fix(&l.due, x.place)
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

// next is when the prompt's share, or else the whole, ends.
func (x *lease) next() time.Time {
	if !x.prefilled && !x.fades.IsZero() {
		return x.fades
	}
	return x.ends
}

// expire ends the shares and the leases that are due. It returns the load of the others.
func (l *leases) expire(now time.Time) map[uint32]replicaLoad {
	load, prefilled, over := l.sweep(now)
	for _, x := range prefilled {
		x.reservation.PrefillDone()
		if x.prefill != nil {
			x.prefill.Release()
		}
	}
	for _, x := range over {
		x.giveBack()
	}
	// The load is given back: a policy that panics leaves none behind.
	for _, x := range prefilled {
		x.endPrefill(policy.Outcome{Sent: true, Usage: policy.NoUsage})
	}
	for _, x := range over {
		if x.id != "" {
			l.expired.Add(1)
		}
		x.release(policy.Outcome{Sent: true, Fault: policy.GivenUp, Usage: policy.NoUsage})
	}
	return load
}

func (l *leases) sweep(now time.Time) (load map[uint32]replicaLoad, prefilled, over []*lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.due) > 0 && !now.Before(l.due[0].next()) {
		x := l.due[0]
		if !now.Before(x.ends) {
			l.forget(x)
			over = append(over, x)
			continue
		}
		l.prefilled(x)
		heap.Fix(&l.due, 0)
		prefilled = append(prefilled, x)
	}
	return maps.Clone(l.load), prefilled, over
}

// endPrefill gives back the load of a prefill leg, if there is one, and reports its outcome. It is called once.
func (x *lease) endPrefill(o policy.Outcome) {
	if x.prefill == nil {
		return
	}
	if x.prefill.Release(); x.learns {
		x.prefill.Router().Complete(&x.q, x.prefill.Decision, o)
	}
}

// release gives back the load, and reports the outcome to a policy that learns. That of a request that failed before
// its prefill leg had ended is of this leg.
func (x *lease) release(o policy.Outcome) {
	if x.prefill != nil && !x.prefilled {
		if x.endPrefill(o); o.Err != nil {
			o = policy.Outcome{Fault: policy.GivenUp, Usage: policy.NoUsage}
		}
	}
	x.reservation.Release()
	if x.learns {
		x.reservation.Router().Complete(&x.q, x.reservation.Decision, o)
	}
}

// giveBack gives back the load.
func (x *lease) giveBack() {
	if x.reservation.Release(); x.prefill != nil {
		x.prefill.Release()
	}
}

// close releases everything.
func (l *leases) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for len(l.due) > 0 { // those that are being made are released in hold
		x := l.due[len(l.due)-1]
		l.forget(x)
		x.giveBack()
	}
}

// queue is a heap of leases by when the next is due.
type queue []*lease

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].next().Before(q[j].next()) }
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
	*q, x.place = (*q)[:last], -1
	return x
}
