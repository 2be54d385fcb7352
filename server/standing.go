package server

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// known returns who calls, by what the context of a call says. Its errors are statuses.
func (g *gate) known(ctx context.Context) (*caller, error) {
	return g.identify(metadata.ValueFromIncomingContext(ctx, "authorization"), certificateOf(ctx))
}

// revoked returns the status with which a stream ends, of whose caller what it showed does not tell any more who it is, or
// that may not use one of these deployments any more; nil where the stream goes on.
func (s *Server) revoked(ctx context.Context, who *caller, deployments ...string) error {
	now, err := s.gate.known(ctx)
	switch {
	case err != nil:
		return status.Errorf(codes.Unauthenticated, "the caller is not known any more: %s", status.Convert(err).Message())
	case now != who:
		return status.Error(codes.Unauthenticated, "the config says now that the caller is another one: call again")
	}
	for _, name := range deployments {
		if !who.may(name) {
			return status.Errorf(codes.PermissionDenied, "the caller %q may not use the deployment %q any more", who.name, name)
		}
	}
	return nil
}

// until waits for the end of a stream: its reader's, the server's, or that the caller may not go on with what the stream uses.
func (s *Server) until(ctx context.Context, who *caller, read <-chan error, uses func() []string) error {
	for {
		moved := s.gate.moved.wait()
		if err := s.revoked(ctx, who, uses()...); err != nil {
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
