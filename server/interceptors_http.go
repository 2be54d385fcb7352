package server

import (
	"context"
	"crypto/x509"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// http does for an HTTP endpoint what the interceptors do for gRPC: the header Authorization and the certificate identify the
// principal, which is kept within its bounds and is in the context of what is passed on, and a panic is an error. refuse writes
// an answer; its reason is one word.
func (x *interceptors) http(next http.Handler, refuse func(w http.ResponseWriter, code int, reason, message string)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := shielded(x.log, r.URL.Path, func() error {
			ctx, end, err := x.admitHTTP(r)
			if err != nil {
				return err
			}
			defer end()
			next.ServeHTTP(w, r.WithContext(ctx))
			return nil
		})
		if err != nil {
			code, reason := httpStatus(status.Code(err))
			if code == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			refuse(w, code, reason, status.Convert(err).Message())
		}
	})
}

func (x *interceptors) admitHTTP(r *http.Request) (ctx context.Context, end func(), err error) {
	if x.authenticator.table.Load().open {
		return r.Context(), func() {}, nil
	}
	var cert *x509.Certificate
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 && len(r.TLS.VerifiedChains[0]) > 0 {
		cert = r.TLS.VerifiedChains[0][0]
	}
	p, err := x.authenticator.identify(r.Header.Values("Authorization"), cert)
	if err != nil {
		x.refusal(r.RemoteAddr, r.URL.Path, err)
		return nil, nil, err
	}
	if err := p.allow(); err != nil {
		return nil, nil, err
	}
	ctx = context.WithValue(r.Context(), principalKey{}, p)
	end, err = x.begin(ctx)
	return ctx, end, err
}

// httpStatus is the status of a refusal, and its reason.
func httpStatus(c codes.Code) (code int, reason string) {
	switch c {
	case codes.Unauthenticated:
		return http.StatusUnauthorized, "unauthenticated"
	case codes.PermissionDenied:
		return http.StatusForbidden, "forbidden"
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests, "too_many_requests"
	}
	return http.StatusInternalServerError, "internal"
}
