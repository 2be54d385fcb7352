package agreed

import "github.com/warmpath/warmpath/balancer/routing"

// Turns sends requests to one replica after the other where agreeing gains nothing: nothing
// is more even for a client that sees few calls and no loads but its own. Its zero value is
// ready. It belongs to one goroutine, as a policy's Choose does to the Router's lock.
type Turns struct{ next int }

const (
	// manyCalls is how many calls a client must have under way at the mean replica for its
	// own view of the load to tell replicas apart. With fewer, chance does.
	manyCalls = 5
	// fewerCalls is by how many calls fewer one of two replicas must have under way to be
	// taken instead of the next in turn also where there are less than that: it does not
	// come from turns, but from calls that are slow to come back.
	fewerCalls = 3
	// turnSample is among how many replicas the mean is taken.
	turnSample = 64
)

// Take returns the next replica of the pool in turn that is available, nil if none is. A
// client that has many calls under way takes the less loaded of the next two: what has not
// come back tells of the others' load too, but tells all clients alike, and who took the
// least loaded of many would meet the others there.
func (t *Turns) Take(pool routing.Pool, v *routing.View) *routing.Replica {
	n, looked, ongoing := len(pool.Replicas), 0, 0
	var first, second int // available, in turn
	for i := 0; i < n && looked < turnSample; i++ {
		at := (t.next + i) % n
		if !pool.Takes(pool.Replicas[at]) {
			continue
		}
		if looked == 0 {
			first = at
		}
		if looked < 2 {
			second = at
		}
		looked++
		ongoing += pool.Replicas[at].Ongoing()
	}
	if looked == 0 {
		return nil
	}
	t.next = (first + 1) % n
	next, other := pool.Replicas[first], pool.Replicas[second]
	if ongoing >= manyCalls*looked && v.Load(other) < v.Load(next) || other.Ongoing()+fewerCalls <= next.Ongoing() {
		next = other
	}
	return next
}
