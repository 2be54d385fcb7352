package channel

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/internal/kvindex"
)

// Retries are the bounds of attempts after the first, as [policy.Config] says.
type Retries struct {
	Ratio, Floor      float64
	Backoff           policy.Backoff
	QuarantineTTL     time.Duration // negative = no quarantine
	FirstTokenTimeout time.Duration // 0 = none
}

// unboundRetries hold while no balancer, or more than one, is bound.
var unboundRetries = Retries{Ratio: policy.DefaultRetryRatio, Floor: policy.DefaultRetryFloor, QuarantineTTL: -1}

// Sentinels in the errors of calls, which are gRPC statuses as well.
var (
	// ErrRetryBudget: the attempt failed, and may have been made again but for the
	// budget. The status is that of the attempt.
	ErrRetryBudget = errors.New("the retry budget of the channel is spent (retry_ratio, retry_floor)")
	// ErrQuarantined: the connections of two replicas broke under the prompt.
	ErrQuarantined = errors.New("the prompt is in quarantine (quarantine_ttl)")
)

// A callError is a status with the sentinel that says why.
type callError struct {
	status *status.Status
	whys   []error
}

func (e *callError) Error() string              { return e.status.Err().Error() }
func (e *callError) GRPCStatus() *status.Status { return e.status }
func (e *callError) Unwrap() []error            { return e.whys }

// Retries returns the bounds in force.
func (h *Handle) Retries() Retries {
	if b := h.Bound(); b != nil {
		return b.Retries
	}
	return unboundRetries
}

// Retry takes one more attempt out of the channel's budget, and reports whether it was there.
func (c *Call) Retry() bool {
	r := c.handle.Retries()
	if c.handle.budget.take(time.Now(), r.Ratio, r.Floor) {
		return true
	}
	c.handle.Telemetry.OverBudget(c, c.policy())
	return false
}

// OverBudget returns the error of a call whose attempt is not made again for want of a budget.
func OverBudget(err error) error {
	st, _ := status.FromError(err)
	return &callError{
		status: status.New(st.Code(), st.Message()+"; warmpath: it is not tried again: "+ErrRetryBudget.Error()),
		whys:   []error{ErrRetryBudget, err},
	}
}

// policy is the name of the policy in force, for telemetry.
func (c *Call) policy() string {
	if b := c.handle.Bound(); b != nil {
		return b.Policy
	}
	return ""
}

// Retried counts an attempt after another, by its cause.
func (c *Call) Retried(cause string) { c.handle.Telemetry.Retried(c, c.policy(), cause) }

// Broke notes an attempt that was sent and broke before its first message. Where it got UNAVAILABLE
// and the replica answered nothing, its connection broke. The error is not nil if the prompt is in quarantine now.
func (c *Call) Broke(last Attempt) error {
	b, replica := c.handle.Bound(), last.Replica
	if b == nil || b.Retries.QuarantineTTL <= 0 || replica == nil || last.Answered || status.Code(last.Err) != codes.Unavailable {
		return nil
	}
	prompt, known := c.prompt(b.Dialects)
	return c.quarantined(b, c.handle.quarantine.broke(breakage{
		prompt: prompt, known: known, replica: replica.ID, at: time.Now(), began: last.breaks, beside: replica.Ongoing() > 0,
	}, b.Retries.QuarantineTTL))
}

// brokeLate notes that a connection may have broken under a call that was answered: under others it is no evidence
// against their prompts. Called with mu held.
func (c *Call) brokeLate(err error) {
	if b := c.binding; b != nil && b.Retries.QuarantineTTL > 0 && status.Code(err) == codes.Unavailable && c.last.Replica != nil {
		c.handle.quarantine.broke(breakage{replica: c.last.Replica.ID, at: time.Now(), began: c.last.breaks}, b.Retries.QuarantineTTL)
	}
}

// checkQuarantine returns the error of a call whose prompt is in quarantine.
func (c *Call) checkQuarantine(b *Binding) error {
	q := &c.handle.quarantine
	if q.held.Load() == 0 || b.Retries.QuarantineTTL <= 0 {
		return nil
	}
	prompt, ok := c.prompt(b.Dialects)
	if !ok {
		return nil
	}
	return c.quarantined(b, q.refuses(prompt, time.Now(), b.Retries.QuarantineTTL))
}

func (c *Call) quarantined(b *Binding, by []strike) error {
	if by == nil {
		return nil
	}
	c.handle.Telemetry.Quarantined(c, b.Policy)
	return &callError{
		status: status.New(codes.Internal, fmt.Sprintf("warmpath: the prompt is not sent to another replica: the connections to %s and %s broke "+
			"while they had it and before they answered, and no replica has answered it since; it is sent again from %s on (quarantine_ttl)",
			by[0].replica, by[1].replica, by[0].at.Add(b.Retries.QuarantineTTL).UTC().Format(time.RFC3339))),
		whys: []error{ErrQuarantined},
	}
}

// acquit takes the prompt of a call that was answered off the suspects.
func (c *Call) acquit() {
	q := &c.handle.quarantine
	if q.held.Load() == 0 {
		return
	}
	if b := c.handle.Bound(); b != nil {
		if prompt, ok := c.prompt(b.Dialects); ok {
			q.clear(prompt)
		}
	}
}

// prompt returns the hash of the whole prompt with its model, adapter and salt; false where
// the message has none. It is read from the message, once, whatever the policy looks at.
// The goroutine of the call uses it.
func (c *Call) prompt(t *dialect.Table) (uint64, bool) {
	r := c.more()
	if r.hashed || c.msg == nil {
		return r.hash, r.hasPrompt
	}
	r.hashed = true
	var q routing.Request
	t.Lookup(c.Request.Method).Request(&q, routing.UsesPrompt|dialect.WantModel, c.msg)
	seed := kvindex.SeedFor(q.Model, q.Adapter, q.CacheSalt)
	var whole [1]uint64
	hash := kvindex.AppendTokens(whole[:0], q.Prompt.Tokens, len(q.Prompt.Tokens), seed)
	if len(hash) == 0 {
		hash = kvindex.AppendText(whole[:0], q.Prompt.Text, len(q.Prompt.Text), seed)
	}
	if len(hash) > 0 {
		r.hash, r.hasPrompt = hash[0], true
	}
	return r.hash, r.hasPrompt
}
