package channel

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"
)

// maxSuspects bounds the prompts that are remembered, about 200 bytes each.
const maxSuspects = 1024

// A quarantine remembers the prompts under which connections broke. A prompt that
// did so on two different replicas within the TTL is not sent any more, until the
// older of the two is forgotten; one that a replica answered is innocent. While
// nobody is suspected it costs a call one atomic load.
type quarantine struct {
	held atomic.Int64 // suspects

	// mu guards what follows; nothing is called under it.
	mu       sync.Mutex
	suspects map[uint64]*list.Element
	order    list.List // of suspect, whoever was struck last at the back
}

type suspect struct {
	prompt  uint64
	strikes []strike // of different replicas, the oldest first, at most two
}

type strike struct {
	replica string
	at      time.Time
}

// strike notes that a connection broke while the replica had the prompt and had
// not answered. It returns the two replicas if that makes two.
func (q *quarantine) strike(prompt uint64, replica string, now time.Time, ttl time.Duration) []strike {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.expire(now, ttl)
	e := q.suspects[prompt]
	if e == nil {
		if q.suspects == nil {
			q.suspects = make(map[uint64]*list.Element)
		}
		if len(q.suspects) >= maxSuspects {
			q.forget(q.order.Front())
		}
		e = q.order.PushBack(&suspect{prompt: prompt})
		q.suspects[prompt] = e
		q.held.Store(int64(len(q.suspects)))
	}
	q.order.MoveToBack(e)
	s := e.Value.(*suspect)
	kept := s.strikes[:0]
	for _, x := range s.strikes {
		if x.replica != replica && now.Sub(x.at) < ttl {
			kept = append(kept, x)
		}
	}
	if len(kept) == 2 {
		kept = append(kept[:0], kept[1])
	}
	s.strikes = append(kept, strike{replica, now})
	return s.convicted(now, ttl)
}

// refuses returns the two replicas if the prompt is in quarantine.
func (q *quarantine) refuses(prompt uint64, now time.Time, ttl time.Duration) []strike {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.expire(now, ttl)
	if e := q.suspects[prompt]; e != nil {
		return e.Value.(*suspect).convicted(now, ttl)
	}
	return nil
}

// clear forgets a prompt: a replica has answered it.
func (q *quarantine) clear(prompt uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e := q.suspects[prompt]; e != nil {
		q.forget(e)
	}
}

func (s *suspect) convicted(now time.Time, ttl time.Duration) []strike {
	if len(s.strikes) < 2 || now.Sub(s.strikes[0].at) >= ttl {
		return nil
	}
	return append([]strike(nil), s.strikes...)
}

// expire forgets whoever was struck last longer ago than the TTL. Called with mu held.
func (q *quarantine) expire(now time.Time, ttl time.Duration) {
	for e := q.order.Front(); e != nil; e = q.order.Front() {
		strikes := e.Value.(*suspect).strikes
		if now.Sub(strikes[len(strikes)-1].at) < ttl {
			return
		}
		q.forget(e)
	}
}

func (q *quarantine) forget(e *list.Element) {
	q.order.Remove(e)
	delete(q.suspects, e.Value.(*suspect).prompt)
	q.held.Store(int64(len(q.suspects)))
}
