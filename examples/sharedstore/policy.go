package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
)

// Name is the policy's name in a config.
const Name = "shared_sessions"

// reasonShared is the policy's own word for why.
const reasonShared policy.Reason = "shared_session"

// Config is the policy's config.
type Config struct {
	// Server is a look-aside server, host:port, and Deployment the name of one of its deployments. In the server's own
	// process they are not needed: there the deployment's store comes with the context.
	Server     string `json:"server,omitempty"`
	Deployment string `json:"deployment,omitempty"`
	// TTL is how long a session stays with its replica without a call; 0 = 10m.
	TTL policy.Duration `json:"ttl,omitempty"`
}

func init() {
	policy.Register(Name, func(c Config) (policy.Policy, error) {
		s, err := New(c)
		if err != nil {
			return policy.Policy{}, err
		}
		return s.Policy(), nil
	})
}

// Sessions is a policy that keeps in a shared store where each session is.
//
// The rule. A session's first call goes to the replica that is least loaded in the view of its client, and from then
// on every client and the look-aside server send the session there. Two clients that meet a new session at once agree
// on the entry that was written first. When the replica has left the fleet the next client moves the session, for all.
// A client without a connection to it routes by load for once and does not renew the entry: a replica that is down
// loses its sessions after the TTL, and a client that has just started moves none. Without a store, and without a
// session, the least loaded replica takes the call.
type Sessions struct {
	store policy.Store // nil in the server: it comes with the context
	conn  *grpc.ClientConn
	ttl   time.Duration
}

// New returns the policy. Its errors name the field.
func New(c Config) (*Sessions, error) {
	c.TTL = cmp.Or(c.TTL, policy.Duration(10*time.Minute))
	if c.TTL < policy.Duration(time.Second) {
		return nil, fmt.Errorf("ttl: %v is shorter than 1s", c.TTL)
	}
	s := &Sessions{ttl: time.Duration(c.TTL)}
	if c.Server == "" {
		return s, nil
	}
	conn, err := grpc.NewClient(c.Server, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s.store, s.conn = client.NewStore(conn, c.Deployment), conn
	return s, nil
}

// Policy returns what a Router hosts. Its prepare calls out: it has a deadline then, and in the server the store.
func (s *Sessions) Policy() policy.Policy {
	return policy.Policy{
		Uses:    policy.UsesSession | policy.CallsOut,
		Prepare: s.prepare,
		Choose:  s.choose,
		Close:   s.close,
	}
}

// prepare asks the store where the session is, and puts it somewhere if it is nowhere.
func (s *Sessions) prepare(ctx context.Context, q *policy.Request, v policy.View) error {
	store := policy.StoreFrom(ctx)
	if store == nil {
		store = s.store
	}
	if store == nil || q.Session == "" || len(v.Connected()) == 0 {
		return nil
	}
	id, err := s.place(ctx, store, q, v)
	if err == nil {
		q.Prepared = id
	}
	return err
}

// place returns the session's replica. Of several concurrent writers one wins, and the others read again.
func (s *Sessions) place(
	ctx context.Context, store policy.Store, q *policy.Request, v policy.View,
) (string, error) {
	key := fmt.Sprintf("session/%016x", xxh3.HashString(q.Session))
	for ctx.Err() == nil {
		e, err := store.Get(ctx, key)
		if err != nil && !errors.Is(err, policy.ErrNotFound) {
			return "", err
		}
		id, renew := s.placed(e, q, v)
		if !renew {
			return id, nil
		}
		switch _, err = store.CompareAndSet(ctx, key, e.Version, []byte(id), s.ttl); {
		case err == nil:
			return id, nil
		case !errors.Is(err, policy.ErrConflict):
			return "", err
		}
	}
	return "", ctx.Err()
}

// placed returns the session's replica from the entry, or else the least loaded one, and whether that is to be
// written.
func (s *Sessions) placed(e policy.Entry, q *policy.Request, v policy.View) (id string, write bool) {
	if r := v.ByID(string(e.Value)); r != nil && v.Allowed(q, r) {
		return r.ID, r.Connected() && e.TTL < s.ttl/2 // written lately, it need not be written again
	}
	if r := v.LeastLoaded(q); r != nil {
		return r.ID, true
	}
	return "", false // all are full: Choose will say so
}

// choose sends the session to its replica, or anywhere for once while that is full.
func (s *Sessions) choose(q *policy.Request, v policy.View) policy.Decision {
	id, _ := q.Prepared.(string)
	if r := v.ByID(id); r != nil && v.Available(q, r) && !q.Tried(r) {
		return policy.To(r, reasonShared)
	}
	if r := v.LeastLoaded(q); r != nil {
		return policy.To(r, policy.ReasonLeastLoaded)
	}
	return policy.Wait()
}

// close is called once, after the last call of the other methods.
func (s *Sessions) close() error {
	if s.conn == nil {
		return nil
	}
	return s.conn.Close()
}
