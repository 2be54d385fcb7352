package loadpoll

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
)

// A Source is how an engine is asked: its text is one of
//
//	grpc:vllm                   GetLoads on the replica's own address, with vLLM's servicer
//	grpc:sglang                 the same with SGLang's
//	http://HOST:8000/metrics    a page for Prometheus; HOST and PORT are those of the replica's address
type Source struct {
	method string            // full gRPC method; else
	page   string            // URL with HOST and PORT
	pages  map[string]string // by id of the replica, where it has a page of its own
}

// methods by the names that a source has for them.
var methods = map[string]string{
	"vllm":   "/vllm.grpc.engine.VllmEngine/GetLoads",
	"sglang": "/sglang.grpc.scheduler.SglangScheduler/GetLoads",
}

// hostName and portName stand for those of the replica's address.
const hostName, portName = "HOST", "PORT"

// Parse reads a source, with the pages of replicas that have one of their own, by id; the error names what is wrong
// with it.
func Parse(text string, pages map[string]string) (Source, error) {
	if name, ok := strings.CutPrefix(text, "grpc:"); ok {
		switch {
		case len(pages) > 0:
			return Source{}, fmt.Errorf("%q: replicas have no pages of their own with it", text)
		case methods[name] == "":
			return Source{}, fmt.Errorf("%q: %q is none of %s", text, name,
				strings.Join(slices.Sorted(maps.Keys(methods)), ", "))
		}
		return Source{method: methods[name]}, nil
	}
	for id, page := range pages {
		if err := checkPage(page); err != nil {
			return Source{}, fmt.Errorf("%s: %w", id, err)
		}
	}
	return Source{page: text, pages: pages}, checkPage(text)
}

func checkPage(text string) error {
	u, err := url.Parse(strings.Replace(text, ":"+portName, ":1", 1))
	switch {
	case err != nil:
		return fmt.Errorf("%q is neither grpc:NAME nor a URL", text)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.Fragment != "":
		return errors.New("want grpc:vllm, grpc:sglang, or a URL like http://HOST:8000/metrics without a user and a fragment")
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
