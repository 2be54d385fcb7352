package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Name is the policy's name in a config.
const Name = "mine"

// reasonPlaced is the policy's own word for why.
const reasonPlaced policy.Reason = "placed"

// Config is the policy's config: plain JSON, decoded strictly.
type Config struct {
	// URL is the placement service. It is asked with ?session=… and answers with
	// a JSON list of replica ids, the best first.
	URL string `json:"url"`
}

// Name implements [policy.NamedConfig], so that client.WithPolicy takes the config.
func (Config) Name() string { return Name }

func init() {
	policy.Register(Name, func(c Config) (policy.Policy, error) {
		m, err := New(c, http.DefaultTransport)
		if err != nil {
			return policy.Policy{}, err
		}
		return m.Policy(), nil
	})
}

// Mine is a policy that asks a service where a session belongs.
//
// The rule. The first replica of the service's list that is available takes the
// request; one that an earlier attempt went to is passed. Without an answer, or
// where no replica of the list is available, the least loaded one is picked.
type Mine struct {
	url    url.URL
	client http.Client
}

// New returns the policy. Its errors name the field.
func New(c Config, transport http.RoundTripper) (*Mine, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("url: %q is not the address of a service", c.URL)
	}
	return &Mine{url: *u, client: http.Client{Transport: transport}}, nil
}

// Policy returns what a Router hosts. It needs the session of a call, not the prompt. CallsOut
// gives prepare a deadline, prepare_timeout in the config.
func (m *Mine) Policy() policy.Policy {
	return policy.Policy{
		Uses:    policy.UsesSession | policy.CallsOut,
		Prepare: m.prepare,
		Choose:  m.choose,
		Close:   m.close,
	}
}

// prepare asks the service. It runs in the goroutine of the call, many at a time
// and without any lock. An error is counted and fails no call.
func (m *Mine) prepare(ctx context.Context, q *policy.Request, _ policy.View) error {
	if q.Session == "" || q.Prepared != nil { // nothing to ask, or the fleet changed since we did
		return nil
	}
	u := m.url
	u.RawQuery = url.Values{"session": {q.Session}}.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	response, err := m.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	var order []string
	if err := json.NewDecoder(io.LimitReader(response.Body, 1<<16)).Decode(&order); err != nil {
		return err
	}
	q.Prepared = order
	return nil
}

// choose runs under the Router's lock: short, no waiting, no allocation.
func (m *Mine) choose(q *policy.Request, v policy.View) policy.Decision {
	order, _ := q.Prepared.([]string)
	for place, id := range order {
		if r := v.ByID(id); r != nil && v.Available(q, r) && !q.Tried(r) {
			d := policy.To(r, reasonPlaced)
			d.Place = place
			return d
		}
	}
	if r := v.LeastLoaded(q); r != nil {
		return policy.To(r, policy.ReasonLeastLoaded)
	}
	return policy.Wait() // all are full: for any of them
}

// close is called once, after the last call of the other methods.
func (m *Mine) close() error {
	m.client.CloseIdleConnections()
	return nil
}
