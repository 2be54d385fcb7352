package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/fleet"
)

// TLS says how the server proves who it is, and what callers have to show. The files are PEM, and are read again when
// they change; a connection keeps what it was made with.
type TLS struct {
	// Cert is the file of the server's certificate, with the certificates between it and its authority.
	Cert string `json:"cert"`
	// Key is the file of its private key.
	Key string `json:"key"`
	// ClientCA is the file of the authorities that sign callers' certificates; empty = callers show none.
	ClientCA string `json:"client_ca,omitempty"`
	// ClientCerts says whether a caller must show a certificate where there is a client_ca: required, or optional for
	// callers that have a token. Empty = required.
	ClientCerts string `json:"client_certs,omitempty"`
}

// What ClientCerts may be.
const (
	certsRequired = "required"
	certsOptional = "optional"
)

func (c *TLS) validate() error {
	switch {
	case c == nil:
		return nil
	case c.Cert == "":
		return errors.New("cert: missing")
	case c.Key == "":
		return errors.New("key: missing")
	case c.ClientCerts != "" && c.ClientCerts != certsRequired && c.ClientCerts != certsOptional:
		return fmt.Errorf("client_certs: %q is neither %s nor %s", c.ClientCerts, certsRequired, certsOptional)
	case c.ClientCerts != "" && c.ClientCA == "":
		return errors.New("client_certs: it needs a client_ca")
	}
	return nil
}

// load reads the files. An error names the field.
func (c *TLS) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, fmt.Errorf("cert, key: %w", err)
	}
	// Without tickets nobody goes on with what an authority vouched for that is not trusted any more.
	t := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"},
		SessionTicketsDisabled: true,
	}
	if c.ClientCA == "" {
		return t, nil
	}
	raw, err := os.ReadFile(c.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("client_ca: %w", err)
	}
	t.ClientCAs = x509.NewCertPool()
	if !t.ClientCAs.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("client_ca: %s has no certificate", c.ClientCA)
	}
	t.ClientAuth = tls.RequireAndVerifyClientCert
	if c.ClientCerts == certsOptional {
		t.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return t, nil
}

// A source of certificates is what a config says of them.
type certSource interface {
	paths() []string // "" = none
	load() (*tls.Config, error)
}

func (c *TLS) paths() []string { return []string{c.Cert, c.Key, c.ClientCA} }

// certificates are what the files of a source say, kept up to date.
type certificates struct {
	from certSource
	log  *slog.Logger
	now  atomic.Pointer[tls.Config]

	mu       sync.Mutex // held while the files are read, lest what was read first is put into force last; guards opened
	opened   bool
	watchers []*fleet.Watcher // written before anybody else has the certificates
}

// openCertificates reads the files and follows them until close.
func openCertificates(c certSource, log *slog.Logger) (*certificates, error) {
	k := &certificates{from: c, log: log}
	for _, path := range c.paths() {
		if path != "" {
			k.watchers = append(k.watchers, fleet.WatchFile(path, func([]byte, error) { k.changed() }))
		}
	}
	if err := k.open(); err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

// open reads the files for the first time: after the watch began, so that no change is missed.
func (k *certificates) open() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	t, err := k.from.load()
	if err != nil {
		return err
	}
	k.now.Store(t)
	k.opened = true
	return nil
}

// changed takes the files as they are now, or stays with what was: a certificate is replaced before its key, or after.
func (k *certificates) changed() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.opened {
		return
	}
	t, err := k.from.load()
	if err != nil {
		k.log.Warn("warmpath: the certificates were not taken, the last good ones stay", "error", err)
		return
	}
	k.now.Store(t)
	k.log.Info("warmpath: the certificates are in force", "files", k.from.paths())
}

// config is for a listener: each handshake uses what is in force.
func (k *certificates) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return k.now.Load(), nil },
	}
}

func (k *certificates) close() {
	for _, w := range k.watchers {
		_ = w.Close()
	}
}
