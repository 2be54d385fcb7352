package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/internal/fleetfile"
	"github.com/warmpath/warmpath/internal/pemfile"
)

// TLS has what one side of connections shows, and the authority of the other side. The files are PEM, and are read again
// when they change; open connections stay.
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
	switch {
	case c == nil:
		return nil
	case c.Cert == "":
		return errors.New("cert: missing")
	case c.Key == "":
		return errors.New("key: missing")
	case c.ClientCerts != "" && c.ClientCerts != certsRequired && c.ClientCerts != certsOptional:
		return fmt.Errorf("client_certs: %q is neither %s nor %s", c.ClientCerts, certsRequired, certsOptional)
	case c.ClientCerts != "" && c.CA == "":
		return errors.New("client_certs: it needs a ca")
	}
	return nil
}

func (c *TLS) load() (*tls.Config, error) {
	if c == nil {
		return nil, nil
	}
	pair, clients, err := c.read()
	if err != nil {
		return nil, fmt.Errorf("tls.%w", err)
	}
	// No tickets: a resumed session would keep a certificate whose authority is no longer trusted.
	t := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: pair, ClientCAs: clients, SessionTicketsDisabled: true,
	}
	switch {
	case clients == nil:
	case c.ClientCerts == certsOptional:
		t.ClientAuth = tls.VerifyClientCertIfGiven
	default:
		t.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return t, nil
}

// read reads the pair and the authorities, where there are any. The error names the field.
func (c *TLS) read() (pair []tls.Certificate, authorities *x509.CertPool, err error) {
	if c.Cert != "" {
		own, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, nil, fmt.Errorf("cert, key: %w", err)
		}
		pair = append(pair, own)
	}
	if c.CA != "" {
		if authorities, err = pemfile.Authorities(c.CA); err != nil {
			return nil, nil, fmt.Errorf("ca: %w", err)
		}
	}
	return pair, authorities, nil
}

// A certSource is the config of certificates.
type certSource interface {
	paths() []string // "" = none
	// load reads the files; nil = there is no config of certificates. An error names the field.
	load() (*tls.Config, error)
}

func (c *TLS) paths() []string { return []string{c.Cert, c.Key, c.CA} }

// watches are those of some files.
type watches []*fleetfile.Watcher

// watchFiles calls changed once all of these files, "" = none, are watched, and after each change of one of them, one
// call at a time.
func watchFiles(paths []string, changed func()) (all watches) {
	var mu sync.Mutex // guards watched; held in changed: the last one counts
	watched := false
	for _, path := range paths {
		if path != "" {
			all = append(all, fleetfile.WatchFile(path, func([]byte, error) {
				mu.Lock()
				defer mu.Unlock()
				if watched {
					changed()
				}
			}))
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if watched = true; len(all) > 0 {
		changed()
	}
	return all
}

func (w watches) close() {
	for _, f := range w {
		_ = f.Close()
	}
}

// certificates are those of a source's files, kept up to date.
type certificates struct {
	from  certSource
	now   atomic.Pointer[tls.Config]
	files watches
}

// openCertificates reads the files and follows them until close; nil = there are none. The last good ones stay where the
// files do not fit: a key changes before or after its certificate.
func openCertificates(from certSource, log *slog.Logger) (*certificates, error) {
	first, err := from.load()
	if first == nil || err != nil {
		return nil, err
	}
	k := &certificates{from: from}
	k.now.Store(first)
	level := slog.LevelDebug // of the reading at the start
	k.files = watchFiles(from.paths(), func() {
		now := level
		level = slog.LevelInfo
		t, err := from.load()
		if err != nil {
			log.Warn("warmpath: the certificates were not accepted, the last good ones stay", "error", err)
			return
		}
		k.now.Store(t)
		log.Log(context.Background(), now, "warmpath: the certificates are in force", "files", from.paths())
	})
	return k, nil
}

// config is for a listener with these protocols: each handshake uses the certificates in force.
func (k *certificates) config(protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := k.now.Load().Clone()
			c.NextProtos = protocols
			return c, nil
		},
	}
}

// close ends the watches; nil = there is none.
func (k *certificates) close() {
	if k != nil {
		k.files.close()
	}
}
