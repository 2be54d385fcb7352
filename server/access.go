package server

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"strings"
)

// checkAccess checks the addresses, the certificates and the principals. The error names the field.
func (c *Config) checkAccess() error {
	if err := c.checkListen(c.Listen); err != nil {
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
	if err := checkLoopback(c.Admin); err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	if err := checkLoopback(c.Metrics); err != nil && !(errors.Is(err, errNotLoopback) && c.AllowPlaintext) {
		return fmt.Errorf("metrics: %w; allow_plaintext permits it if the network is trusted", err)
	}
	return nil
}

var errNotLoopback = errors.New("not on the loopback, and the page has neither TLS nor principals")

// checkLoopback checks the address of a page for operators; empty = there is none.
func checkLoopback(address string) error {
	if address == "" {
		return nil
	}
	local, err := onLoopback(address)
	if err == nil && !local {
		err = fmt.Errorf("%s: %w", address, errNotLoopback)
	}
	return err
}

func (c *Config) checkListen(address string) error {
	local, err := onLoopback(address)
	if err == nil && !local && c.TLS == nil && !c.AllowPlaintext {
		err = fmt.Errorf("%s is not on the loopback, and there is no TLS: "+
			"set tls, or allow_plaintext if the network is trusted", address)
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

// CheckFiles reads the files that the config names: certificates and tokens. The error names the field.
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

// readOnce are the fields of a config that only New reads.
var readOnce = []string{"Listen", "AllowPlaintext", "TLS", "Admin", "Metrics", "LogCalls", "HTTP", "MaxConnections"}

// warnReadOnce logs which changed fields of another config are not in force, since they are read once.
func (s *Server) warnReadOnce(c *Config) {
	was, now := reflect.ValueOf(s.first), reflect.ValueOf(*c)
	for _, name := range readOnce {
		if reflect.DeepEqual(was.FieldByName(name).Interface(), now.FieldByName(name).Interface()) {
			continue
		}
		f, _ := was.Type().FieldByName(name)
		field, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		s.log.Warn("warmpath: a field that is read once has changed: the new value counts after a restart", "field", field)
	}
}
