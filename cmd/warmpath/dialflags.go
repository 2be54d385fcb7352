package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/pemfile"
)

// dialFlags say how a look-aside server is reached.
type dialFlags struct {
	tls       bool
	ca, name  string
	cert, key string
	tokenFile string
}

func (d *dialFlags) add(f *pflag.FlagSet) {
	f.BoolVar(&d.tls, "tls", false, "use TLS, with the system's authorities unless --tls-ca names others")
	f.StringVar(&d.ca, "tls-ca", "", "PEM `file` of the authorities that sign the server's certificate; implies --tls")
	f.StringVar(&d.name, "tls-name", "", "`name` in the server's certificate, if it is not the address")
	f.StringVar(&d.cert, "cert", "", "PEM `file` of the certificate to show; implies --tls")
	f.StringVar(&d.key, "key", "", "PEM `file` of its private key")
	f.StringVar(&d.tokenFile, "token-file", "", "`file` with the token to send, its first line")
}

// dial returns a connection to a server. Its errors are usage errors.
func (d *dialFlags) dial(server string) (*grpc.ClientConn, error) {
	if _, port, err := net.SplitHostPort(server); err != nil || port == "" { // gRPC would take port 443
		return nil, usagef("--server: %q is not host:port", server)
	}
	transport, err := d.transport()
	if err != nil {
		return nil, err
	}
	const largest = 64 << 20 // bytes of a state with 10,000 replicas and their faults
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(transport), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest)),
	}
	if d.tokenFile != "" {
		t, err := d.token(server)
		if err != nil {
			return nil, usagef("--token-file: %w", err)
		}
		opts = append(opts, grpc.WithPerRPCCredentials(t))
	}
	conn, err := grpc.NewClient(server, opts...)
	if err != nil {
		return nil, usagef("--server: %w", err)
	}
	return conn, nil
}

// refusal is the error of a call to a server: what it answered or, where it did not, that it did not. to is the peer
// of the call.
func refusal(server string, to *peer.Peer, err error) error {
	s := status.Convert(err)
	switch {
	case s.Code() == codes.DeadlineExceeded: // the server itself returns it for no call
		return fmt.Errorf("%s does not answer in time (see --timeout): %s", server, s.Message())
	case s.Code() == codes.Unavailable && to.Addr == nil:
		return fmt.Errorf("%s cannot be reached: %s", server, s.Message())
	}
	return fmt.Errorf("%s answers %s: %s", server, s.Code(), s.Message())
}

// secure reports whether TLS is used.
func (d *dialFlags) secure() bool {
	return d.tls || d.ca != "" || d.cert != "" || d.key != "" || d.name != ""
}

func (d *dialFlags) transport() (credentials.TransportCredentials, error) {
	if !d.secure() {
		return insecure.NewCredentials(), nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: d.name}
	var err error
	if d.ca != "" {
		if c.RootCAs, err = authorities("tls-ca", d.ca); err != nil {
			return nil, err
		}
	}
	if d.cert != "" || d.key != "" {
		load, err := certificate("--cert, --key", d.cert, d.key)
		if err != nil {
			return nil, err
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return credentials.NewTLS(c), nil
}

// authorities reads the PEM file of a flag.
func authorities(flag, file string) (*x509.CertPool, error) {
	all, err := pemfile.Authorities(file)
	if err != nil {
		return nil, usagef("--%s: %w", flag, err)
	}
	return all, nil
}

// certificate returns what reads the pair of some flags for each connection.
func certificate(flags, cert, key string) (load func() (*tls.Certificate, error), err error) {
	if load, err = pemfile.Pair(cert, key); err != nil {
		return nil, usagef("%s: %w", flags, err)
	}
	return load, nil
}

// token returns credentials that send what is in the file, and read it again as it is replaced. Without TLS a token only
// goes to this host.
func (d *dialFlags) token(server string) (credentials.PerRPCCredentials, error) {
	token := client.TokenFile(d.tokenFile)
	switch _, err := token.GetRequestMetadata(context.Background()); {
	case err != nil:
		return nil, err
	case d.secure():
		return token, nil
	case !isLoopback(server):
		return nil, errors.New("a token is not sent in plaintext to another host: use --tls or --tls-ca")
	}
	return plaintext{token}, nil
}

// plaintext are credentials that are sent without TLS.
type plaintext struct{ credentials.PerRPCCredentials }

// RequireTransportSecurity implements [credentials.PerRPCCredentials].
func (plaintext) RequireTransportSecurity() bool { return false }

func isLoopback(server string) bool {
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}
