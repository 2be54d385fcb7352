// Package pemfile reads the certificates and keys of TLS from PEM files.
package pemfile

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// Authorities reads the certificates of a file, which has one at least.
func Authorities(file string) (*x509.CertPool, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	all := x509.NewCertPool()
	if !all.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("%s has no certificate", file)
	}
	return all, nil
}

// Pair returns what reads a certificate with its key, for each connection anew: it may be renewed. It is tried once.
func Pair(cert, key string) (load func() (*tls.Certificate, error), err error) {
	load = func() (*tls.Certificate, error) {
		own, err := tls.LoadX509KeyPair(cert, key)
		return &own, err
	}
	if _, err := load(); err != nil {
		return nil, err
	}
	return load, nil
}
