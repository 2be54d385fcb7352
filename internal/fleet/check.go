package fleet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

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
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is not host:port (%s)", address, reason(err))
	}
	if host == "" {
		return fmt.Errorf("%q has no host", address)
	}
	if err := checkHost(host); err != nil {
		return err
	}
	return checkPort(port)
}

// checkServerName accepts what may stand as an authority: a host, with or
// without a port.
func checkServerName(name string) error {
	host := name
	if h, port, err := net.SplitHostPort(name); err == nil {
		if err := checkPort(port); err != nil {
			return err
		}
		host = h
	} else if bare, ok := strings.CutPrefix(name, "["); ok {
		host = strings.TrimSuffix(bare, "]")
	} else if strings.Contains(name, ":") {
		return fmt.Errorf("%q: an IPv6 address needs brackets", name)
	}
	if strings.Contains(host, "%") {
		return fmt.Errorf("%q has a zone", name)
	}
	return checkHost(host)
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
	for _, c := range []byte(host) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_':
		default:
			return fmt.Errorf("host %q has a %q in it", host, c)
		}
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

func reason(err error) string {
	if bad := (*net.AddrError)(nil); errors.As(err, &bad) {
		return bad.Err
	}
	return err.Error()
}
