package loadpoll

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/warmpath/warmpath/internal/loadprobe"
)

// A Source is how an engine is asked: its text is one of
//
//	grpc:vllm                   GetLoads on the replica's own address, with vLLM's servicer
//	grpc:sglang                 the same with SGLang's
//	grpc:orca                   the same by ORCA out of band, as server/replica serves it
//	http://HOST:8000/metrics    a page for Prometheus; HOST and PORT are those of the replica's address
type Source struct {
	replica loadprobe.Source  // the replica itself; else
	page    string            // URL with HOST and PORT
	pages   map[string]string // by id of the replica, where it has a page of its own
}

// hostName and portName stand for those of the replica's address.
const hostName, portName = "HOST", "PORT"

// Parse reads a source, load_poll in a config, with the pages of replicas that have one of their own, by id; the error
// names the field.
func Parse(text string, pages map[string]string) (Source, error) {
	if strings.HasPrefix(text, "grpc:") {
		if len(pages) > 0 {
			return Source{}, fmt.Errorf("load_pages: replicas have no pages of their own with load_poll %q", text)
		}
		source := loadprobe.Source(text)
		if err := source.Check(); err != nil {
			return Source{}, fmt.Errorf("load_poll: %w", err)
		}
		return Source{replica: source}, nil
	}
	if err := checkPage(text); err != nil {
		return Source{}, fmt.Errorf("load_poll: %w", err)
	}
	for id, page := range pages {
		if err := checkPage(page); err != nil {
			return Source{}, fmt.Errorf("load_pages.%s: %w", id, err)
		}
	}
	return Source{page: text, pages: pages}, nil
}

func checkPage(text string) error {
	u, err := url.Parse(strings.Replace(text, ":"+portName, ":1", 1))
	switch {
	case err != nil:
		return fmt.Errorf("%q is neither grpc:NAME nor a URL", text)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.Fragment != "":
		return errors.New("want grpc:vllm, grpc:sglang, grpc:orca, or a URL like http://HOST:8000/metrics without a user and a fragment")
	}
	return nil
}

// pageOf is where the page of a replica at an address is.
func (s Source) pageOf(id, address string) (string, error) {
	page := cmp.Or(s.pages[id], s.page)
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("%q is not host:port", address)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return strings.NewReplacer(hostName, host, portName, port).Replace(page), nil
}
