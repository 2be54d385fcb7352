package nats

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/warmpath/warmpath/internal/cluster"
)

// routeTLS returns the TLS of routes, for both sides of them. The pair is read for each connection.
func routeTLS(c *cluster.TLS) (*tls.Config, error) {
	pem, err := os.ReadFile(c.CA)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	authority := x509.NewCertPool()
	if !authority.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("ca: %s has no certificate", c.CA)
	}
	pair := func() (*tls.Certificate, error) {
		p, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			err = fmt.Errorf("cert, key: %w", err)
		}
		return &p, err
	}
	if _, err := pair(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: authority, ClientCAs: authority, ClientAuth: tls.RequireAndVerifyClientCert,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair() },
	}, nil
}
