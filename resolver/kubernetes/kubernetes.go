// Package kubernetes resolves dial targets that name a Service or an InferencePool of Kubernetes:
//
//	warmpath-kubernetes:///chat.inference:grpc     service.namespace:port, the port by its name
//	warmpath-kubernetes:///chat:50051              in the pod's own namespace
//	warmpath-inferencepool:///pool.inference       the pods that the pool selects, each of its ports one replica
package kubernetes

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/url"
	"strings"

	"google.golang.org/grpc/resolver"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/warmpath/warmpath/internal/target"
)

func init() {
	register(target.ServiceScheme, parseService)
	register(target.PoolScheme, parsePool)
}

// register adds a scheme to gRPC's resolvers, and to what package resolver checks.
func register(scheme string, parse func(url.URL) (query, error)) {
	newBuilder := func(l *slog.Logger) resolver.Builder { return &builder{scheme: scheme, parse: parse, logger: l} }
	resolver.Register(newBuilder(nil))
	target.Imported[scheme] = target.Import{NewBuilder: newBuilder, Check: func(u url.URL) error {
		_, err := parse(u)
		return err
	}}
}

// A builder builds the resolvers of one scheme.
type builder struct {
	scheme string
	parse  func(url.URL) (query, error)
	logger *slog.Logger // nil: slog.Default() at the time
}

var _ resolver.AuthorityOverrider = (*builder)(nil)

// Scheme returns the scheme.
func (b *builder) Scheme() string { return b.scheme }

// OverrideAuthority proposes none: each replica has its own.
func (*builder) OverrideAuthority(resolver.Target) string { return target.NoAuthority }

// Build joins the source of the target. It does not wait for the API server. A target with a mistake is an error, and
// so is a process that has neither a service account nor a kubeconfig.
func (b *builder) Build(
	t resolver.Target, cc resolver.ClientConn, opts resolver.BuildOptions,
) (resolver.Resolver, error) {
	q, err := b.parse(t.URL)
	if err != nil {
		return nil, err
	}
	c, err := connect()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", b.scheme, err)
	}
	c.log = cmp.Or(b.logger, slog.Default())
	return join(sourceKey{target: t.URL.String(), logger: c.log}, q, c, cc, target.Own(opts)), nil
}

// parseName reads the path of a target, name.namespace or name with "" as namespace, and the port behind it, where
// there is one.
func parseName(u url.URL) (name, namespace, port string, err error) {
	path, isPath := strings.CutPrefix(u.Path, "/")
	if u.Host != "" || u.User != nil || u.Fragment != "" || !isPath {
		return "", "", "", fmt.Errorf("%q: want %s:///name.namespace with three slashes", u.String(), u.Scheme)
	}
	path, port, _ = strings.Cut(path, ":")
	name = path
	if dot := strings.LastIndexByte(path, '.'); dot >= 0 {
		name, namespace = path[:dot], path[dot+1:]
		if wrong := validation.IsDNS1123Label(namespace); wrong != nil {
			return "", "", "", fmt.Errorf("%q: namespace %q: %s", u.String(), namespace, wrong[0])
		}
	}
	if wrong := validation.IsDNS1123Subdomain(name); wrong != nil {
		return "", "", "", fmt.Errorf("%q: name %q: %s", u.String(), name, wrong[0])
	}
	return name, namespace, port, nil
}
