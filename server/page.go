package server

import (
	"context"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/httpendpoint"
	"github.com/warmpath/warmpath/internal/page"
	"github.com/warmpath/warmpath/internal/requestkey"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// pageHost is the server as its page sees it.
type pageHost struct{ routingService }

// GetStatus implements [page.Host].
func (h pageHost) GetStatus(ctx context.Context, r *warmpathv1.GetStatusRequest) (*warmpathv1.GetStatusResponse,
	error) {
	return statusService{Server: h.Server}.GetStatus(ctx, r)
}

// Admitted implements [page.Host].
func (h pageHost) Admitted(r *http.Request) error {
	p, err := h.authenticator.identify(r.Header.Values("Authorization"), verified(r.TLS))
	if err == nil && p != h.principalOf(r.Context()) {
		err = status.Error(codes.Unauthenticated, "the config has another principal for this token or certificate now")
	}
	return err
}

// openPage makes the page, and returns its handler behind the principals.
func (s *Server) openPage(c *Config) (http.Handler, error) {
	sessions, err := requestkey.NewSessionKeys(httpendpoint.HeaderSession)
	if err != nil {
		return nil, err
	}
	s.page = page.New(pageHost{routingService{Server: s}}, page.Options{
		Sessions: sessions, MaxBody: c.HTTP.MaxBodyBytes, Done: s.draining,
	})
	return tokenAsPassword(s.authenticator.http(s.page, page.Deny)), nil
}

// tokenAsPassword lets browsers send a token, as the password of any name. Only the page accepts it, since browsers add
// it to requests that other sites make.
func tokenAsPassword(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, token, ok := r.BasicAuth(); ok && len(r.Header.Values("Authorization")) == 1 {
			r = r.Clone(r.Context())
			r.Header.Set("Authorization", "Bearer "+token)
		}
		next.ServeHTTP(w, r)
	})
}

// recordPage keeps what the page's charts show until the function that it returns has returned.
func (s *Server) recordPage() (end func()) {
	ctx := context.WithValue(context.Background(), principalKey{}, s.authenticator.unrestricted)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.page.Record(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}
