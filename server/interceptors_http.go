package server

import (
	"context"
	"crypto/x509"
	"net/http"

	"github.com/warmpath/warmpath/internal/httpendpoint"
)

// http is the HTTP endpoint's counterpart of the interceptors: the header Authorization or the certificate identifies the
// principal, which is kept within its bounds and put into the context, and a panic becomes an error.
func (x *interceptors) http(next http.Handler) http.Handler {
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
			httpendpoint.Deny(w, err)
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
