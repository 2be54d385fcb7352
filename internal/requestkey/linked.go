package requestkey

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/warmpath/warmpath/balancer/dialect"
)

// checkLinked checks the paths of a dialect against the messages of those of its methods whose generated code the
// program links: each path must lead to something that can be read.
func checkLinked(d dialect.Dialect, methods []string) error {
	own, err := newMethod(d) // without what it takes over from the one that it is like
	if err != nil {
		return err
	}
	for _, name := range methods {
		service, method, _ := strings.Cut(strings.TrimPrefix(name, "/"), "/")
		found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
		sd, ok := found.(protoreflect.ServiceDescriptor)
		if err != nil || !ok {
			continue
		}
		md := sd.Methods().ByName(protoreflect.Name(method))
		if md == nil {
			return fmt.Errorf("methods: the service %s has no method %s", service, method)
		}
		if err := own.request.check(md.Input()); err != nil {
			return err
		}
		if err := own.response.check(md.Output()); err != nil {
			return err
		}
	}
	return nil
}

// check returns an error for a path of which no alternative leads to a field that can be read in messages of the type.
func (f *fields) check(d protoreflect.MessageDescriptor) error {
	read := f.root.resolve(d, nil).refs()
	for s := range numSlots {
		if all := uint32(1)<<f.to[s] - uint32(1)<<f.from[s]; f.slots&s.bit() != 0 && read&all == 0 {
			return fmt.Errorf("%s: %s has no such field of a kind that can be read", f.names[f.from[s]], d.FullName())
		}
	}
	return nil
}

// refs returns the refs of the leaves that were found.
func (p *plan) refs() (refs uint32) {
	if p == nil {
		return 0
	}
	for _, x := range p.fields {
		if refs |= x.next.refs(); x.leaf >= 0 {
			refs |= 1 << x.leaf
		}
	}
	return refs
}
