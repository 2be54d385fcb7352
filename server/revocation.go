package server

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// authenticate returns the principal of a call, by its metadata and certificate. Its errors are statuses.
func (a *authenticator) authenticate(ctx context.Context) (*principal, error) {
	return a.identify(metadata.ValueFromIncomingContext(ctx, "authorization"), certificateOf(ctx))
}

// revoked returns the status that ends a stream whose token or certificate no longer identifies its principal, or
// whose principal may no longer use one of these deployments; nil = the stream goes on.
func (s *Server) revoked(ctx context.Context, p *principal, deployments ...string) error {
	now, err := s.authenticator.authenticate(ctx)
	switch {
	case err != nil:
		return status.Errorf(codes.Unauthenticated, "the principal is not known any more: %s", status.Convert(err).Message())
	case now != p:
		return status.Error(codes.Unauthenticated,
			"the config has another principal for this token or certificate now: call again")
	}
	for _, name := range deployments {
		if !p.may(name) {
			return status.Errorf(codes.PermissionDenied,
				"the principal %q may not use the deployment %q any more", p.name, name)
		}
	}
	return nil
}

// until waits for the end of a stream: of its reader, of the server, or of its principal's permission for uses.
func (s *Server) until(ctx context.Context, p *principal, read <-chan error, uses func() []string) error {
	for {
		moved := s.authenticator.moved.wait()
		if err := s.revoked(ctx, p, uses()...); err != nil {
			return err
		}
		select {
		case err := <-read:
			return err
		case <-s.draining:
			return errDraining
		case <-moved:
		}
	}
}
