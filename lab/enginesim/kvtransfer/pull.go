package kvtransfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
)

// Pull is the end of the engine that gets the KV. It belongs to one goroutine.
type Pull struct {
	// Content is the hash of the tokens that the KV is of, once Ready has succeeded. Real engines do not look at it.
	Content uint64

	c       net.Conn
	in      *json.Decoder
	reading bool          // Ready has succeeded
	lost    chan struct{} // closed when reading has ended
}

// Open asks the source at an address for the KV of a key, with the parameters as they came. wait is for a leg that may
// begin later.
func Open(ctx context.Context, addr, key, params string, wait bool) (*Pull, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	}
	if err := json.NewEncoder(c).Encode(request{key, params, wait}); err != nil {
		c.Close()
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	}
	return &Pull{c: c, in: json.NewDecoder(c), lost: make(chan struct{})}, nil
}

// Ready waits until the KV is computed. The error is ErrParams, the source's refusal, ErrLost, or the context's.
func (p *Pull) Ready(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { p.c.Close() })()
	var r reply
	err := p.in.Decode(&r)
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case err != nil:
		err = fmt.Errorf("%w: %w", ErrLost, err)
	case r.Error == ErrParams.Error():
		err = ErrParams
	case r.Error != "":
		err = errors.New(r.Error)
	}
	if err != nil {
		return err
	}
	p.reading, p.Content = true, r.Content
	go func() {
		_ = p.in.Decode(&r) // nothing comes but the end
		close(p.lost)
	}()
	return nil
}

// Lost is closed when the source is gone or has ended the leg, or after Done and Close. Ready must have succeeded.
func (p *Pull) Lost() <-chan struct{} { return p.lost }

// Done reports that all KV is here, and closes the pull.
func (p *Pull) Done() error {
	defer p.Close()
	return json.NewEncoder(p.c).Encode(report{Done: true})
}

// Close gives the pull up; nothing if it is over.
func (p *Pull) Close() {
	p.c.Close()
	if p.reading {
		<-p.lost
	}
}
