package loadpoll

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
)

// A Source says how an engine is asked: its text is one of
//
//	grpc:vllm                   GetLoads on the replica's own address, with vLLM's servicer
//	grpc:sglang                 the same with SGLang's
//	http://HOST:8000/metrics    a page for Prometheus; HOST is the replica's own
type Source struct {
	method string // full gRPC method; else
	page   string // URL with HOST
}

// methods by the names that a source has for them.
var methods = map[string]string{
	"vllm":   "/vllm.grpc.engine.VllmEngine/GetLoads",
	"sglang": "/sglang.grpc.scheduler.SglangScheduler/GetLoads",
}

// hostName stands for the replica's own host.
const hostName = "HOST"

// Parse reads a source; the error says what is wrong with it.
func Parse(text string) (Source, error) {
	if name, ok := strings.CutPrefix(text, "grpc:"); ok {
		if methods[name] == "" {
			return Source{}, fmt.Errorf("%q: %q is none of %s", text, name, strings.Join(slices.Sorted(maps.Keys(methods)), ", "))
		}
		return Source{method: methods[name]}, nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return Source{}, fmt.Errorf("%q is neither grpc:NAME nor a URL", text)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.Fragment != "":
		return Source{}, errors.New("want grpc:vllm, grpc:sglang, or a URL like http://HOST:8000/metrics without a user and a fragment")
	}
	return Source{page: text}, nil
}

// pageOf is where the page of the replica at an address is.
func (s Source) pageOf(address string) (string, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("%q is not host:port", address)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return strings.ReplaceAll(s.page, hostName, host), nil
}
