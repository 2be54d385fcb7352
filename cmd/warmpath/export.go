package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	_ "net/http/pprof" // adds its pages to http.DefaultServeMux, which is served where --pprof asks for them
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel/attribute"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// metricsPath is where Prometheus finds the page.
const metricsPath = "/metrics"

// Bounds of the page's readers.
const (
	maxScrapes    = 4
	scrapeTimeout = 10 * time.Second
)

// exporting exports a server's metrics and spans while it serves. Nothing is exported unless it is asked for: the page
// for Prometheus by an address to listen on, the rest by OpenTelemetry's environment variables, see exported.
type exporting struct {
	log    *slog.Logger
	meter  metric.MeterProvider
	tracer trace.TracerProvider
	ends   []func(context.Context) error
}

// startExport begins to export, and prints the address of the page, which has pprof too if it is asked for.
func startExport(ctx context.Context, listen string, pprof bool, out serveOutput) (x *exporting, err error) {
	x = &exporting{log: out.log, meter: metricnoop.NewMeterProvider(), tracer: tracenoop.NewTracerProvider()}
	defer func() {
		if err != nil {
			x.end()
		}
	}()
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "warmpath")),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return x, err
	}
	if exported("TRACES") {
		exporter, err := autoexport.NewSpanExporter(ctx)
		if err != nil {
			return x, fmt.Errorf("OTEL_TRACES_EXPORTER or OTEL_EXPORTER_OTLP_PROTOCOL: %w", err)
		}
		tracers := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
		x.tracer, x.ends = tracers, append(x.ends, tracers.Shutdown)
	}
	options := []sdkmetric.Option{sdkmetric.WithResource(about)}
	if exported("METRICS") {
		reader, err := autoexport.NewMetricReader(ctx)
		if err != nil {
			return x, fmt.Errorf("OTEL_METRICS_EXPORTER or OTEL_EXPORTER_OTLP_PROTOCOL: %w", err)
		}
		options = append(options, sdkmetric.WithReader(reader))
	}
	if listen != "" {
		pages, write := http.NewServeMux(), 2*scrapeTimeout
		reader, err := addMetrics(pages)
		if err != nil {
			return x, fmt.Errorf("metrics: %w", err)
		}
		if pprof {
			write = 0 // a profile takes as long as its request sets
			pages.Handle("GET /debug/pprof/", http.DefaultServeMux)
		}
		at, end, err := serveHTTP(ctx, listen, pages, write)
		if err != nil {
			return x, fmt.Errorf("metrics: %w", err)
		}
		options, x.ends = append(options, sdkmetric.WithReader(reader)), append(x.ends, end)
		out.say(fmt.Sprintf("metrics on http://%s%s", at, metricsPath))
	}
	if len(options) > 1 {
		meters := sdkmetric.NewMeterProvider(options...)
		x.meter, x.ends = meters, append(x.ends, meters.Shutdown)
	}
	return x, nil
}

// end sends what is left.
func (x *exporting) end() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, end := range slices.Backward(x.ends) {
		if err := end(ctx); err != nil {
			x.log.Warn("warmpath: the last metrics and spans were not sent", "error", err)
		}
	}
}

// addMetrics adds the page for Prometheus, and returns what collects for it.
func addMetrics(pages *http.ServeMux) (sdkmetric.Reader, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
	pages.Handle("GET "+metricsPath,
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout,
			EnableOpenMetrics: true}))
	return reader, err
}

// exported reports whether the environment asks for METRICS or TRACES: by an endpoint for OTLP or the name of an
// exporter, unless OTEL_SDK_DISABLED is true.
func exported(signal string) bool {
	asked := cmp.Or(os.Getenv("OTEL_"+signal+"_EXPORTER"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"),
		os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT"))
	return asked != "" && asked != "none" && os.Getenv("OTEL_SDK_DISABLED") != "true"
}

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
