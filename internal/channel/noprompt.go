package channel

import (
	"errors"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ErrNoPrompt is what a picker is told where a prompt is required and the call has
// none. gRPC does not let a picker say INVALID_ARGUMENT: the interceptor does, by Final.
var ErrNoPrompt = errors.New("the call has no prompt, and require_prompt is set")

// promptless are services that have no prompts and are called on any channel.
var promptless = []string{"/grpc.health.v1.", "/grpc.reflection."}

// keyless reports whether the method is of such a service.
func keyless(method string) bool {
	return slices.ContainsFunc(promptless, func(service string) bool { return strings.HasPrefix(method, service) })
}

// lacksPrompt reports whether the call is to be refused for want of a prompt. Health
// and reflection never are, nor methods whose dialect has none.
func (c *Call) lacksPrompt(b *Binding) bool {
	if !b.NeedsPrompt || c.Request.PromptTokens > 0 {
		return false
	}
	if keyless(c.Request.Method) {
		return false
	}
	c.refused = b.Dialects.Lookup(c.Request.Method).HasPrompt()
	return c.refused
}

// Refused reports whether the call was refused for want of a prompt.
func (c *Call) Refused() bool { return c.refused }

// Final returns the error of a call as the application is to see it.
func (c *Call) Final(err error) error {
	if err == nil || !c.refused {
		return err
	}
	return status.Errorf(codes.InvalidArgument, "warmpath: require_prompt is set, and the request of %s has no prompt: "+
		"send one, or say in dialects where the method's prompt stands; a method that never has one needs a dialect without prompt", c.Request.Method)
}
