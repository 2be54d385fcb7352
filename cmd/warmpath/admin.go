package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// startAdmin serves pprof on an address of the loopback; on none if it is empty.
func startAdmin(ctx context.Context, address string, log *slog.Logger) (*http.Server, error) {
	s := &http.Server{Handler: adminMux(), ReadHeaderTimeout: 10 * time.Second}
	if address == "" {
		return s, nil
	}
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	log.Info("warmpath: pprof is served", "url", "http://"+lis.Addr().String()+"/debug/pprof/")
	go func() {
		if err := s.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
			log.Error("warmpath: pprof is not served any more", "error", err)
		}
	}()
	return s, nil
}

// adminMux is pprof's handlers, on a mux of their own: what others register with net/http's is not shown.
func adminMux() *http.ServeMux {
	m := http.NewServeMux()
	m.HandleFunc("GET /debug/pprof/", pprof.Index)
	m.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	m.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	m.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	m.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return m
}
