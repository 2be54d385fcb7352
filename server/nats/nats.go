// Package nats joins look-aside servers to one view over a NATS that runs. It is imported for its effect: the server's
// config may then have cluster.
package nats

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cluster"
)

func init() { cluster.Open = open }

const (
	// pingInterval is how often a connection is checked. Two unanswered pings end the connection.
	pingInterval = time.Second
	// maxUnsent and maxUnsentBytes bound the messages that wait to be sent. Messages beyond them are dropped.
	maxUnsent, maxUnsentBytes = 4096, 64 << 20
	// closeTime is how long Close waits for unsent messages.
	closeTime = time.Second
)

// bus implements [cluster.Bus] over NATS.
type bus struct {
	conn    *nats.Conn
	stream  jetstream.JetStream
	log     *slog.Logger
	unsent  chan message
	waiting atomic.Int64  // bytes in unsent
	ended   chan struct{} // closed when every message is sent
	cause   string        // the last logged reason why NATS cannot be reached; only NATS's callback goroutine uses it
}

type message struct {
	subject string
	data    []byte
}

// open connects to NATS. It waits neither for the other servers nor for a NATS that cannot be reached.
func open(c cluster.Config, log *slog.Logger) (cluster.Bus, error) {
	b := &bus{log: log, unsent: make(chan message, maxUnsent), ended: make(chan struct{})}
	options := []nats.Option{
		nats.Name("warmpath"), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.ReconnectWait(200 * time.Millisecond), nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.ReconnectBufSize(-1), nats.NoEcho(), nats.Timeout(time.Second), nats.FlusherTimeout(time.Second),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(2),
		nats.IgnoreAuthErrorAbort(), // each connection reads the credentials again: a refusal may be temporary
		nats.DisconnectErrHandler(b.lost), nats.ReconnectErrHandler(b.lost), nats.ErrorHandler(b.failed),
		nats.ConnectHandler(b.reached), nats.ReconnectHandler(b.reached),
	}
	if c.NATS.Creds != "" {
		o, err := credentials(c.NATS.Creds)
		if err != nil {
			return nil, fmt.Errorf("nats.creds: %w", err)
		}
		options = append(options, o)
	}
	var err error
	if b.conn, err = nats.Connect(c.NATS.URL, options...); err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	if b.stream, err = jetstream.New(b.conn); err != nil {
		b.conn.Close()
		return nil, fmt.Errorf("nats: %w", err)
	}
	go b.send()
	return b, nil
}

// credentials returns the option for a file of NATS credentials, or for a file that holds user:password. Every
// connection reads the file again.
func credentials(file string) (nats.Option, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if strings.Contains(string(raw), "-----BEGIN") {
		return nats.UserCredentials(file), nil
	}
	if !strings.Contains(string(raw), ":") {
		return nil, fmt.Errorf("%s has neither NATS credentials nor user:password", file)
	}
	return nats.UserInfoHandler(func() (user, password string) {
		raw, _ := os.ReadFile(file) // an unreadable file is refused by NATS, and read again for the next connection
		user, password, _ = strings.Cut(strings.TrimSpace(string(raw)), ":")
		return user, password
	}), nil
}

// lost logs why NATS cannot be reached, each cause once.
func (b *bus) lost(_ *nats.Conn, err error) {
	if err != nil && err.Error() != b.cause {
		b.cause = err.Error()
		b.log.Warn("warmpath: NATS cannot be reached; the state of the other servers stays", "error", err)
	}
}

func (b *bus) reached(*nats.Conn) {
	b.cause = ""
	b.log.Info("warmpath: NATS is reached")
}

// failed logs an error of a subscription, or of the connection.
func (b *bus) failed(c *nats.Conn, of *nats.Subscription, err error) {
	if of == nil {
		b.lost(c, err)
		return
	}
	b.log.Warn("warmpath: NATS drops messages", "error", err) // the gap is found by the sequence
}

// send sends the published messages. A hanging connection holds up this goroutine only.
func (b *bus) send() {
	defer close(b.ended)
	for m := range b.unsent {
		_ = b.conn.Publish(m.subject, m.data) // an error is a message lost
		b.waiting.Add(-int64(len(m.data)))
	}
}

// Publish implements [cluster.Bus].
func (b *bus) Publish(subject string, data []byte) error {
	if most := b.conn.MaxPayload(); most > 0 && int64(len(data)) > most { // 0 = NATS was not reached yet
		return fmt.Errorf("%w: %d bytes, and max_payload of NATS is %d", cluster.ErrTooLarge, len(data), most)
	}
	if b.waiting.Add(int64(len(data))) > maxUnsentBytes {
		b.waiting.Add(-int64(len(data)))
		return errUnsent
	}
	select {
	case b.unsent <- message{subject, data}:
		return nil
	default:
		b.waiting.Add(-int64(len(data)))
		return errUnsent
	}
}

// errUnsent is the error of a message that is dropped because NATS takes messages too slowly.
var errUnsent = errors.New("too many messages wait to be sent to NATS")

// Subscribe implements [cluster.Bus].
func (b *bus) Subscribe(subject string, take func([]byte)) (stop func(), err error) {
	ended := make(chan struct{})
	s, err := b.conn.Subscribe(subject, func(m *nats.Msg) { take(m.Data) })
	if err != nil {
		return nil, err
	}
	s.SetClosedHandler(func(string) { close(ended) })
	return func() {
		if s.Unsubscribe() == nil {
			<-ended
		}
	}, nil
}

// Connected implements [cluster.Bus].
func (b *bus) Connected() bool { return b.conn.IsConnected() }

// Store implements [cluster.Bus].
func (b *bus) Store(name string) policy.Store { return newStore(b.stream, name) }

// Close implements [cluster.Bus].
func (b *bus) Close() {
	close(b.unsent)
	select {
	case <-b.ended:
		_ = b.conn.FlushTimeout(closeTime)
	case <-time.After(closeTime):
	}
	b.conn.Close()
	<-b.ended
}
