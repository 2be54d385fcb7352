// Package nats joins look-aside servers to one view over NATS. It is imported for its effect: the server's config may
// then have cluster.
package nats

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"sync/atomic"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cluster"
	"github.com/warmpath/warmpath/internal/pemfile"
)

func init() { cluster.Open = open }

const (
	// startTime is how long the embedded NATS may take to start.
	startTime = 10 * time.Second
	// pingInterval is how often a connection is checked; two that are not answered end it.
	pingInterval = time.Second
	// maxUnsent and maxUnsentBytes bound the messages that wait to be sent. More are dropped.
	maxUnsent, maxUnsentBytes = 4096, 64 << 20
	// closeTime is how long Close waits for what is not sent yet.
	closeTime = time.Second
	// user and operator are the users of the embedded NATS.
	user, operator = "warmpath", "operator"
)

// bus implements [cluster.Bus] over NATS.
type bus struct {
	conn     *nats.Conn
	stream   jetstream.JetStream
	embed    *natsserver.Server // nil = it runs elsewhere
	dir      string             // of the embedded one; "" = none
	password string             // likewise
	copies   int                // of what the store has
	log      *slog.Logger
	unsent   chan message
	waiting  atomic.Int64  // bytes in unsent
	ended    chan struct{} // closed when all is sent
	operator *nats.Conn    // of the embedded one's system account; nil = it runs elsewhere
	cause    string        // why NATS cannot be reached; of the callbacks, which one goroutine calls
}

type message struct {
	subject string
	data    []byte
}

// open connects to NATS, and starts it where it is embedded. It does not wait for the other servers, nor for a NATS
// that cannot be reached.
func open(c cluster.Config, log *slog.Logger) (cluster.Bus, error) {
	b := &bus{log: log, copies: 1, unsent: make(chan message, maxUnsent), ended: make(chan struct{})}
	options := []nats.Option{
		nats.Name("warmpath"), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.ReconnectWait(200 * time.Millisecond), nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.ReconnectBufSize(-1), nats.NoEcho(), nats.Timeout(time.Second), nats.FlusherTimeout(time.Second),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(2),
		nats.IgnoreAuthErrorAbort(), // credentials are read for each connection: what is refused now need not stay so
		nats.DisconnectErrHandler(b.lost), nats.ReconnectErrHandler(b.lost), nats.ErrorHandler(b.failed),
		nats.ConnectHandler(b.reached), nats.ReconnectHandler(b.reached),
	}
	if c.NATS.Creds != "" {
		options = append(options, nats.UserCredentials(c.NATS.Creds))
	}
	if c.NATS.Embed != nil {
		if err := b.start(c.NATS.Embed); err != nil {
			return nil, fmt.Errorf("nats.embed: %w", err)
		}
		options = append(options, nats.InProcessServer(b.embed), nats.UserInfo(user, b.password))
	}
	var err error
	if b.conn, err = nats.Connect(cmp.Or(c.NATS.URL, nats.DefaultURL), options...); err == nil {
		b.stream, err = jetstream.New(b.conn)
	}
	if err == nil && b.embed != nil {
		b.operator, err = nats.Connect("", nats.InProcessServer(b.embed), nats.UserInfo(operator, b.password))
	}
	if err != nil {
		b.stop()
		return nil, fmt.Errorf("nats: %w", err)
	}
	go b.send()
	return b, nil
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

// start starts the embedded NATS.
func (b *bus) start(e *cluster.Embed) error {
	b.password = nuid.Next() + nuid.Next()
	o, err := embedded(e, b.password)
	if err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "warmpath-nats-"); err != nil {
		return err
	}
	o.StoreDir = b.dir
	if b.embed, err = natsserver.NewServer(o); err != nil {
		return errors.Join(err, os.RemoveAll(b.dir))
	}
	b.copies = 3
	b.embed.SetLoggerV2(logger{b.log}, false, false, false)
	go b.embed.Start()
	if !b.embed.ReadyForConnections(startTime) {
		b.stop()
		return fmt.Errorf("listen: NATS does not start on %s: see the log", e.Listen)
	}
	return nil
}

// embedded are NATS's options: a port for the other servers, and one on the loopback, without which NATS opens no port
// at all, whose password does not leave this process.
func embedded(e *cluster.Embed, password string) (*natsserver.Options, error) {
	host, port, _ := net.SplitHostPort(e.Listen) // the config was checked
	n, _ := net.LookupPort("tcp", port)
	o := &natsserver.Options{
		ServerName: "warmpath-" + nuid.Next(), NoSigs: true, JetStream: true,
		Host: "127.0.0.1", Port: natsserver.RANDOM_PORT,
		JetStreamMaxMemory: 256 << 20, JetStreamMaxStore: 256 << 20, MaxPayload: 4 << 20,
		PingInterval: pingInterval, MaxPingsOut: 2, WriteDeadline: 2 * time.Second,
	}
	system := natsserver.NewAccount(natsserver.DEFAULT_SYSTEM_ACCOUNT)
	o.Accounts, o.SystemAccount = []*natsserver.Account{system}, system.Name
	o.Users = []*natsserver.User{{Username: user, Password: password}, {Username: operator, Password: password, Account: system}}
	o.Cluster = natsserver.ClusterOpts{
		Name: "warmpath", NoAdvertise: true, Host: cmp.Or(host, "0.0.0.0"), Port: cmp.Or(n, natsserver.RANDOM_PORT),
	}
	if e.TLS != nil {
		var err error
		if o.Cluster.TLSConfig, err = routeTLS(e.TLS); err != nil {
			return nil, fmt.Errorf("tls.%w", err)
		}
	}
	for _, r := range e.Routes {
		u, _ := url.Parse(r)
		o.Routes = append(o.Routes, u)
		if password, ok := u.User.Password(); ok {
			o.Cluster.Username, o.Cluster.Password = u.User.Username(), password
		}
	}
	return o, nil
}

// send sends what is published. It is the only one that a connection that hangs can hold up.
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
func (b *bus) Store(name string) policy.Store { return newStore(b.stream, name, b.copies) }

// Close implements [cluster.Bus].
func (b *bus) Close() {
	if b.operator != nil {
		b.leave()
	}
	close(b.unsent)
	select {
	case <-b.ended:
		_ = b.conn.FlushTimeout(closeTime)
	case <-time.After(closeTime):
	}
	b.stop()
	<-b.ended
}

func (b *bus) stop() {
	if b.conn != nil {
		b.conn.Close()
	}
	if b.embed != nil {
		b.embed.Shutdown()
		b.embed.WaitForShutdown()
		_ = os.RemoveAll(b.dir)
	}
}

// logger is the log of the embedded NATS.
type logger struct{ log *slog.Logger }

func (l logger) Noticef(format string, v ...any) { l.log.Debug("nats: " + fmt.Sprintf(format, v...)) }
func (l logger) Warnf(format string, v ...any)   { l.log.Debug("nats: " + fmt.Sprintf(format, v...)) }
func (l logger) Fatalf(format string, v ...any)  { l.log.Error("nats: " + fmt.Sprintf(format, v...)) }
func (l logger) Errorf(format string, v ...any)  { l.log.Warn("nats: " + fmt.Sprintf(format, v...)) }
func (l logger) Debugf(string, ...any)           {}
func (l logger) Tracef(string, ...any)           {}

// routeTLS returns the TLS of routes, for both sides of them. The pair is read for each connection.
func routeTLS(c *cluster.TLS) (*tls.Config, error) {
	authority, err := pemfile.Authorities(c.CA)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	pair, err := pemfile.Pair(c.Cert, c.Key)
	if err != nil {
		return nil, fmt.Errorf("cert, key: %w", err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: authority, ClientCAs: authority, ClientAuth: tls.RequireAndVerifyClientCert,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair() },
	}, nil
}

const (
	// leaveTime is how long a server that ends waits for the others, looked at every leaveInterval. It is longer than
	// an election of NATS, which takes up to nine seconds.
	leaveTime, leaveInterval = 12 * time.Second, 50 * time.Millisecond
)

// leave takes this server out of the embedded servers, whose majority JetStream needs, once the others that run are
// among them, and a majority agrees, or after leaveTime. A server has another name in each life: one that has ended
// would count for ever.
func (b *bus) leave() {
	defer b.operator.Close()
	for began := time.Now(); time.Since(began) < leaveTime && !b.left(); {
		time.Sleep(leaveInterval)
	}
}

// left tries to take this server out, and reports whether there is nothing to wait for.
func (b *bus) left() bool {
	info, err := b.embed.Jsz(nil)
	if err != nil || info.Meta == nil {
		return err == nil && info.Disabled
	}
	others := b.embed.NumRemotes()
	self := func(p *natsserver.PeerInfo) bool { return p.Name == b.embed.Name() }
	switch {
	case others == 0, others+1 < info.Meta.QuorumNeeded: // no majority is connected
		return true
	case info.Meta.Leader == "" && !slices.ContainsFunc(info.Meta.Replicas, self): // it led, so there was no answer
		return true
	case info.Meta.Size <= others: // one of them is not among JetStream's yet
		return false
	}
	return b.removed()
}

// removed takes this server out, and reports whether that is done.
func (b *bus) removed() bool {
	data, err := json.Marshal(natsserver.JSApiMetaServerRemoveRequest{Server: b.embed.Name()})
	if err != nil {
		return false
	}
	m, err := b.operator.Request(natsserver.JSApiRemoveServer, data, closeTime) // without a leader there is no answer
	var a natsserver.JSApiMetaServerRemoveResponse
	return err == nil && json.Unmarshal(m.Data, &a) == nil && a.Success
}
