package extproc

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// eitherTLS takes connections with TLS and without. Most gateways dial an endpoint picker with TLS and do not verify
// its certificate, others dial it without; the protocol leaves that open.
type eitherTLS struct {
	credentials.TransportCredentials
}

// newEitherTLS returns credentials whose certificate lasts as long as the process.
func newEitherTLS() credentials.TransportCredentials {
	certificate := sync.OnceValues(selfSigned)
	return eitherTLS{credentials.NewTLS(&tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate() },
	})}
}

func selfSigned() (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"warmpath"},
		NotBefore: time.Now().AddDate(0, 0, -1), NotAfter: time.Now().AddDate(10, 0, 0),
	}
	raw, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, nil
}

// ServerHandshake implements [credentials.TransportCredentials].
func (e eitherTLS) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	var first [1]byte
	if _, err := io.ReadFull(conn, first[:]); err != nil {
		return nil, nil, err
	}
	conn = &begun{conn, io.MultiReader(bytes.NewReader(first[:]), conn)}
	const handshake = 22 // the type of the record that begins a connection with TLS
	if first[0] == handshake {
		return e.TransportCredentials.ServerHandshake(conn)
	}
	return insecure.NewCredentials().ServerHandshake(conn)
}

// begun is a connection whose first byte was read.
type begun struct {
	net.Conn
	reader io.Reader
}

func (b *begun) Read(p []byte) (int, error) { return b.reader.Read(p) }
