package main

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// serveHTTP serves at an address until the function that it returns is called. An answer may take as long as write;
// 0 is no bound.
func serveHTTP(ctx context.Context, address string, h http.Handler, write time.Duration) (at net.Addr,
	end func(context.Context) error, err error) {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, nil, err
	}
	s := &http.Server{Handler: h, ReadTimeout: 10 * time.Second, WriteTimeout: write, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10}
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(lis) }) // until end
	end = func(context.Context) error {
		defer serving.Wait()
		return s.Close()
	}
	return lis.Addr(), end, nil
}
