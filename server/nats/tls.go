package nats

import (
	"crypto/tls"
	"fmt"

	"github.com/warmpath/warmpath/internal/cluster"
	"github.com/warmpath/warmpath/internal/pemfile"
)

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
