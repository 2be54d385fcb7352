package server

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"reflect"
)

// checkAccess checks where the server listens, and for whom. The error names the field.
func (c *Config) checkAccess() error {
	if err := c.checkListen(); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if err := c.TLS.validate(); err != nil {
		return fmt.Errorf("tls.%w", err)
	}
	if err := validatePrincipals(c.Principals, c.TLS); err != nil {
		return fmt.Errorf("principals%w", err)
	}
	for i := range c.Principals {
		for _, name := range c.Principals[i].Deployments {
			if _, ok := c.Deployments[name]; !ok {
				return fmt.Errorf("principals[%d].deployments: there is no deployment %q", i, name)
			}
		}
	}
	if c.Admin == "" {
		return nil
	}
	// What pprof shows of the memory is not for others, however they prove who they are.
	if local, err := onLoopback(c.Admin); err != nil {
		return fmt.Errorf("admin: %w", err)
	} else if !local {
		return fmt.Errorf("admin: %s is not on the loopback", c.Admin)
	}
	return nil
}

func (c *Config) checkListen() error {
	local, err := onLoopback(c.Listen)
	if err == nil && !local && c.TLS == nil && !c.AllowPlaintext {
		err = fmt.Errorf("%s is not on the loopback, and there is no TLS: set tls, or allow_plaintext if the network is trusted", c.Listen)
	}
	return err
}

// onLoopback reports whether only this host reaches an address, host:port.
func onLoopback(address string) (bool, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return false, fmt.Errorf("%q is not host:port", address)
	}
	if _, err := net.LookupPort("tcp", cmp.Or(port, "?")); err != nil {
		return false, fmt.Errorf("%q is no port", port)
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback(), nil
}

// CheckFiles reads the files that the config names, certificates and tokens. The error names the field.
func (c *Config) CheckFiles() error {
	if c.TLS != nil {
		if _, err := c.TLS.load(); err != nil {
			return fmt.Errorf("tls.%w", err)
		}
	}
	for name, d := range c.Deployments {
		if err := d.checkFiles(); err != nil {
			return fmt.Errorf("deployments.%s: %w", name, err)
		}
	}
	_, _, err := newAuthenticator(nil).build(c)
	return err
}

// saidOnce logs which fields of another config are not taken, since they are read once.
func (s *Server) saidOnce(c *Config) {
	for _, f := range []struct {
		name     string
		was, now any
	}{
		{"listen", s.first.Listen, c.Listen},
		{"allow_plaintext", s.first.AllowPlaintext, c.AllowPlaintext},
		{"tls", s.first.TLS, c.TLS},
		{"admin", s.first.Admin, c.Admin},
		{"metrics", s.first.Metrics, c.Metrics},
		{"log_calls", s.first.LogCalls, c.LogCalls},
		{"http", s.first.HTTP, c.HTTP},
		{"max_message_bytes", s.first.MaxMessageBytes, c.MaxMessageBytes},
		{"max_connections", s.first.MaxConnections, c.MaxConnections},
		{"max_streams", s.first.MaxStreams, c.MaxStreams},
	} {
		if !reflect.DeepEqual(f.was, f.now) {
			s.log.Warn("warmpath: the config has another value of what is read once: it counts after a restart", "field", f.name)
		}
	}
}
