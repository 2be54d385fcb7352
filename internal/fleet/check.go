package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// want returns an error where a condition does not hold.
func want(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

func checkNames(names []string) error {
	i := slices.Index(names, "")
	return want(i < 0, "name %d is empty", i+1)
}

func checkID(id string) error {
	if len(id) > maxID {
		return fmt.Errorf("longer than %d bytes", maxID)
	}
	if i := strings.IndexFunc(id, func(c rune) bool { return c <= ' ' || c >= 0x7f }); i >= 0 {
		return fmt.Errorf("%q has something else than printable ASCII at byte %d", id, i)
	}
	return nil
}

func checkAddress(address string) error {
	if address == "" {
		return errors.New("missing; want host:port")
	}
	host, port, err := net.SplitHostPort(address)
	switch bad := (*net.AddrError)(nil); {
	case errors.As(err, &bad):
		return fmt.Errorf("%q is not host:port (%s)", address, bad.Err)
	case host == "":
		return fmt.Errorf("%q has no host", address)
	}
	return cmp.Or(checkHost(host), checkPort(port))
}

// checkServerName accepts what may stand as an authority: a host, with or
// without a port.
func checkServerName(name string) error {
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		host, port = name, "1"
		if bare, ok := strings.CutPrefix(name, "["); ok {
			host = strings.TrimSuffix(bare, "]")
		} else if strings.Contains(name, ":") {
			return fmt.Errorf("%q: an IPv6 address needs brackets", name)
		}
	}
	switch {
	case name == "":
		return nil
	case strings.Contains(host, "%"):
		return fmt.Errorf("%q has a zone", name)
	}
	return cmp.Or(checkPort(port), checkHost(host))
}

func checkHost(host string) error {
	if strings.Contains(host, ":") {
		if _, err := netip.ParseAddr(host); err != nil {
			return fmt.Errorf("%q is not an IPv6 address", host)
		}
		// The zone is the one part that ParseAddr lets through unread.
		_, host, _ = strings.Cut(host, "%")
		if host == "" {
			return nil
		}
	}
	if host == "" || len(host) > 253 {
		return fmt.Errorf("host %q is empty or too long", host)
	}
	bad := func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("-._", c))
	}
	if i := strings.IndexFunc(host, bad); i >= 0 {
		return fmt.Errorf("host %q has a %q in it", host, host[i])
	}
	return nil
}

func checkPort(port string) error {
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("port %q is not a number from 1 to 65535", port)
	}
	return nil
}

// addressKey is the same for two spellings of one address.
func addressKey(address string) string {
	host, port, _ := net.SplitHostPort(address)
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
	}
	n, _ := strconv.Atoi(port)
	return net.JoinHostPort(strings.ToLower(host), strconv.Itoa(n))
}
