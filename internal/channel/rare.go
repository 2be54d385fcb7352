package channel

import "github.com/warmpath/warmpath/balancer/telemetry"

// rare is what only few calls need to remember.
type rare struct {
	// hash is that of the prompt, for the quarantine; used by the goroutine of the call.
	hash              uint64
	hashed, hasPrompt bool
	// id is the request's own, where Request.ID is not it. avoid is the id of the replica that
	// has the first attempt, in the Call of a second one. Neither changes once set.
	id, avoid string
	// dropped says that another attempt has taken the call over. report is where the
	// decision of an attempt goes that is not alone; nil = nowhere. Guarded by Call.mu.
	dropped, notAlone bool
	// unsent is why a second attempt is made, under which it is counted when it is sent;
	// "" = it was, or there is none. Guarded by Call.mu.
	unsent string
	report *telemetry.Report
}

// more returns what few calls remember, to be changed.
func (c *Call) more() *rare {
	if r := c.rare.Load(); r != nil {
		return r
	}
	c.rare.CompareAndSwap(nil, new(rare))
	return c.rare.Load()
}

// report is where the application, or nobody, reads the decision. Called with mu held.
func (c *Call) report() *telemetry.Report {
	if r := c.rare.Load(); r != nil && r.notAlone {
		return r.report
	}
	if c.route != nil {
		return c.route.Report
	}
	return nil
}

// requestID is the id by which the engine knows the request.
func (c *Call) requestID() string {
	if r := c.rare.Load(); r != nil && r.id != "" {
		return r.id
	}
	return c.Request.ID
}
