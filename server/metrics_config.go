package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// Metrics says where metrics can be read. OTLP is set by OpenTelemetry's environment variables.
type Metrics struct {
	// Listen is the address of a page for Prometheus, /metrics; empty = none. Read once.
	Listen string `json:"listen,omitempty"`
	// AllowPlaintext allows listening elsewhere than on the loopback. Read once.
	AllowPlaintext bool `json:"allow_plaintext,omitempty"`
}

func (m *Metrics) validate() error {
	if m.Listen == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(m.Listen)
	if err != nil || port == "" {
		return fmt.Errorf("listen: %q is not host:port", m.Listen)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return fmt.Errorf("listen: %q is no port", port)
	}
	ip, err := netip.ParseAddr(host)
	if local := host == "localhost" || err == nil && ip.IsLoopback(); !local && !m.AllowPlaintext {
		return errors.New("listen: it is not on the loopback, and whoever reaches the page can read it: set metrics.allow_plaintext if the network is trusted")
	}
	return nil
}
