package server

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/warmpath/warmpath/internal/pemfile"
	"github.com/warmpath/warmpath/internal/strict"
)

// TLS has what one side of connections shows, and the authority of the other side. The files are PEM, and are read
// again when they change; open connections stay.
type TLS struct {
	// CA is the file of the authorities that sign the certificates of the other side: clients, where empty = they present
	// none, or replicas, where empty = the system's.
	CA string `json:"ca,omitempty"`
	// Cert is the file of the server's certificate, with its intermediate certificates. In replica_tls, empty = none.
	Cert string `json:"cert,omitempty"`
	// Key is the file of its private key.
	Key string `json:"key,omitempty"`
	// ClientCerts is whether a client must present a certificate where there is a ca: required, or optional for clients
	// with a token. Empty = required. Not in replica_tls.
	ClientCerts string `json:"client_certs,omitempty"`
}

// Values of ClientCerts.
const (
	certsRequired = "required"
	certsOptional = "optional"
)

func (c *TLS) validate() error {
	if c == nil {
		return nil
	}
	known := []string{"", certsRequired, certsOptional}
	return cmp.Or(
		strict.Want(c.Cert != "", "cert: missing"),
		strict.Want(c.Key != "", "key: missing"),
		strict.Want(slices.Contains(known, c.ClientCerts),
			"client_certs: %q is neither %s nor %s", c.ClientCerts, certsRequired, certsOptional),
		strict.Want(c.ClientCerts == "" || c.CA != "", "client_certs: it needs a ca"),
	)
}

// validateForReplicas checks a replica_tls. The error names the field.
func (c *TLS) validateForReplicas() error {
	if c == nil {
		return nil
	}
	return cmp.Or(
		strict.Want((c.Cert == "") == (c.Key == ""), "replica_tls.cert: it needs a key, and a key needs it"),
		strict.Want(c.ClientCerts == "", "replica_tls.client_certs: only in tls"),
	)
}

// load reads the files, for either side of a connection; nil = there are none. The error names the field, which is in
// the one given.
func (c *TLS) load(in string) (*tls.Config, error) {
	if c == nil {
		return nil, nil
	}
	// No tickets: a resumed session would keep a certificate whose authority is no longer trusted.
	t := &tls.Config{MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true}
	if c.Cert != "" {
		own, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("%s.cert, key: %w", in, err)
		}
		t.Certificates = []tls.Certificate{own}
	}
	if c.CA == "" {
		return t, nil
	}
	authorities, err := pemfile.Authorities(c.CA)
	if err != nil {
		return nil, fmt.Errorf("%s.ca: %w", in, err)
	}
	t.RootCAs, t.ClientCAs, t.ClientAuth = authorities, authorities, tls.RequireAndVerifyClientCert
	if c.ClientCerts == certsOptional {
		t.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return t, nil
}

// certificates are those of some files, which each handshake reads: they may be renewed. The last good ones stay where
// the files do not fit: a key changes before or after its certificate.
type certificates struct {
	read   func() (*tls.Config, error)
	good   atomic.Pointer[tls.Config]
	log    *slog.Logger
	broken rate.Sometimes // when files that do not fit are logged
}

// openCertificates reads the files of a config; nil = it has none.
func openCertificates(c *TLS, in string, log *slog.Logger) (*certificates, error) {
	first, err := c.load(in)
	if first == nil || err != nil {
		return nil, err
	}
	k := &certificates{
		read: func() (*tls.Config, error) { return c.load(in) }, log: log,
		broken: rate.Sometimes{First: 1, Interval: 10 * time.Second},
	}
	k.good.Store(first)
	return k, nil
}

// now returns those in force.
func (k *certificates) now() *tls.Config {
	t, err := k.read()
	if err != nil {
		k.broken.Do(func() {
			k.log.Warn("warmpath: the certificates were not accepted, the last good ones stay", "error", err)
		})
		return k.good.Load()
	}
	k.good.Store(t)
	return t
}

// config is for a listener with these protocols.
func (k *certificates) config(protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := k.now().Clone()
			c.NextProtos = protocols
			return c, nil
		},
	}
}
