package client

import (
	"context"
	"reflect"
)

// early is the context of a stream that is not open yet: the application's. Only
// an open stream has what grpc.PreparedMsg looks for in its context, the codec and
// the compressor, so that look opens the stream; what is prepared hides the prompt
// anyway, and the call is routed by metadata.
type early struct {
	context.Context
	core *core
}

// Value implements [context.Context].
func (e early) Value(key any) any {
	if !wantsCodec(key) {
		return e.Context.Value(key)
	}
	if _, err := e.core.begin(nil); err != nil {
		return nil // the stream's methods tell the status
	}
	if ctx := e.core.openContext(); ctx != nil {
		return ctx.Value(key)
	}
	return nil
}

// wantsCodec reports whether a context key is the one that grpc.PreparedMsg asks
// for. gRPC does not export it; should it change its name, the test of prepared
// messages fails.
func wantsCodec(key any) bool {
	t := reflect.TypeOf(key)
	return t != nil && t.Name() == "rpcInfoContextKey" && t.PkgPath() == "google.golang.org/grpc"
}
