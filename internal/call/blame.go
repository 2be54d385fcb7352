package call

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/part"
)

// When one of two replicas dies, the transfer between their legs breaks, and the engine of the other replica answers with
// a status such as INTERNAL. A leg that ends so is disputed. It is no evidence against its replica, and the retry does
// not avoid that replica, if the connection to the other one was lost, the other leg has failed by itself, or the lease
// was over. All other legs are judged as any attempt.

// A link is the connection to a replica at one moment.
type link struct {
	*policy.Replica
	number uint32
}

func linkTo(r *policy.Replica) link { return link{r, part.OfReplica(r).Links.Load()} }

// lost reports whether the connection is gone, also where there is another one by now: the replica may have died.
func (l link) lost() bool {
	return !l.Connected() || part.OfReplica(l.Replica).Links.Load() != l.number
}

// disputeTime is how long a disputed leg waits for the end of the other one before it is judged: what breaks a transfer
// breaks the connection, too.
const disputeTime = 100 * time.Millisecond

// ofTransfer reports whether a leg that ended with err may have failed with the transfer.
func ofTransfer(err error) bool {
	switch status.Code(err) {
	case codes.Internal, codes.Unknown, codes.Aborted, codes.DataLoss, codes.FailedPrecondition:
		return true
	}
	return false
}

// disputed reports whether a leg that ended with err may have failed with the transfer: that had begun, and was not
// complete. Called with mu held.
func (l *legs) disputed(err error) bool {
	return ofTransfer(err) && !l.over && (!l.kv.Sequential() || !l.until.IsZero())
}

// dispute is disputed without mu held; false for nil legs.
func (l *legs) dispute(err error) bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.disputed(err)
}

// broke reports whether the decode leg, which failed with err, may have failed with the transfer. The next attempt then
// does not begin with the answer of the prefill leg.
func (l *legs) broke(err error) bool {
	if l == nil || !ofTransfer(err) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return false
	}
	l.until, l.suspect = time.Time{}, true
	return true
}

// spend notes that a decode replica may have taken the KV cache. The prefill replica then gives the blocks to other
// requests, and vLLM lets a second decode replica read what is in them by now, without an error: no other decode leg
// begins with the answer.
func (l *legs) spend() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spent = true
}

// spares reports whether a leg that ended with err is not at fault.
func (l *legs) spares(prefill bool, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.err != nil && !ofTransfer(l.err) // the prefill leg failed by itself
	switch {
	case !l.disputed(err):
		return !prefill && own && status.Code(err) == codes.Canceled // for that
	case prefill:
		l.spared = status.Code(l.decodeErr) == codes.Unavailable || l.decodes.lost()
		return l.spared
	}
	return own || l.prefills.lost() || !l.until.IsZero() && !time.Now().Before(l.until)
}

// blame corrects the outcome of a leg before it is reported. Called with mu held.
func (c *Call) blame() {
	o := &c.outcome
	if c.legs == nil || o.result.FirstMessage > 0 || !c.legs.spares(c.leg, o.result.Err) {
		return
	}
	if o.last.spared = true; o.result.Fault == policy.Failed || o.result.Fault == policy.Doubtful {
		o.result.Fault = policy.GivenUp
	}
}

// decoding notes that gRPC begins the attempt of the decode leg.
func (l *legs) decoding() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent, l.decodeErr = make(chan struct{}), nil
}

// decoded notes that gRPC is done with the attempt of the decode leg, if it has one.
func (l *legs) decoded(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent != nil {
		close(l.sent)
		l.sent, l.decodeErr = nil, err
	}
}

// attempt returns what is closed when gRPC is done with the attempt of the decode leg; nil = none is under way. lost is
// the error that the last one ended with.
func (l *legs) attempt() (done <-chan struct{}, lost error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent, l.decodeErr
}
