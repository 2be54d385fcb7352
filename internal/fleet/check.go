package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/internal/strict"
)

func checkNames(names []string) error {
	i := slices.Index(names, "")
	return strict.Want(i < 0, "name %d is empty", i+1)
}

func checkID(id string) error {
	i := strings.IndexFunc(id, func(c rune) bool { return c <= ' ' || c >= 0x7f })
	return cmp.Or(
		strict.Want(len(id) <= maxID, "longer than %d bytes", maxID),
		strict.Want(i < 0, "%q has something else than printable ASCII at byte %d", id, i),
	)
}

func checkAddress(address string) error {
	if address == "" {
		return errors.New("missing; want host:port")
	}
	host, port, err := net.SplitHostPort(address)
	if bad := (*net.AddrError)(nil); errors.As(err, &bad) {
		return fmt.Errorf("%q is not host:port (%s)", address, bad.Err)
	}
	return cmp.Or(checkHost(host), checkPort(port))
}

// checkServerName accepts what may stand as an authority: a host, with or without a port.
func checkServerName(name string) error {
	switch {
	case name == "", checkAddress(name) == nil && !strings.Contains(name, "%"):
		return nil
	case strings.Contains(name, "%"):
		return fmt.Errorf("%q has a zone", name)
	case checkAddress(name+":1") != nil:
		return fmt.Errorf("%q is neither host nor host:port; an IPv6 address needs brackets", name)
	}
	return nil
}

// hostName is the name of a host, or the zone of an IPv6 address, which ParseAddr lets through unread.
var hostName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,253}$`)

func checkHost(host string) error {
	name := host
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() {
		name = cmp.Or(ip.Zone(), "none")
	}
	return strict.Want(hostName.MatchString(name), "%q is neither the name of a host nor an IP address", host)
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
