package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
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
	log     *slog.Logger
	meters  *sdkmetric.MeterProvider // nil where nothing was asked for
	tracers *sdktrace.TracerProvider // nil where nothing was asked for
	page    *http.Server             // nil where there is none
	served  chan struct{}
	addr    net.Addr
}

// startExport begins to export, and prints the address of the page.
func startExport(ctx context.Context, listen string, out serveOutput) (*exporting, error) {
	x := &exporting{log: out.log}
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "warmpath")),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, err
	}
	if x.tracers, err = newTracers(ctx, about); err != nil {
		return nil, err
	}
	readers, err := x.readers(ctx, listen)
	if err != nil {
		x.end()
		return nil, err
	}
	if len(readers) > 0 {
		x.meters = sdkmetric.NewMeterProvider(append(readers, sdkmetric.WithResource(about))...)
	}
	if x.addr != nil {
		out.say(fmt.Sprintf("metrics on http://%s%s", x.addr, metricsPath))
	}
	return x, nil
}

// meter is the provider to record through.
func (x *exporting) meter() metric.MeterProvider {
	if x.meters == nil {
		return metricnoop.NewMeterProvider()
	}
	return x.meters
}

// tracer is the provider of spans.
func (x *exporting) tracer() trace.TracerProvider {
	if x.tracers == nil {
		return tracenoop.NewTracerProvider()
	}
	return x.tracers
}

// end sends what is left.
func (x *exporting) end() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var err error
	if x.meters != nil {
		err = x.meters.Shutdown(ctx)
	}
	if x.tracers != nil {
		err = errors.Join(err, x.tracers.Shutdown(ctx))
	}
	if err != nil {
		x.log.Warn("warmpath: the last metrics and spans were not sent", "error", err)
	}
	if x.page != nil {
		_ = x.page.Close()
		<-x.served
	}
}

// newTracers is nil where the environment does not ask for an exporter.
func newTracers(ctx context.Context, about *resource.Resource) (*sdktrace.TracerProvider, error) {
	if !exported("TRACES") {
		return nil, nil
	}
	exporter, err := autoexport.NewSpanExporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER or OTEL_EXPORTER_OTLP_PROTOCOL: %w", err)
	}
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about)), nil
}

// readers read the metrics: for the exporter that the environment asks for, and for the page.
func (x *exporting) readers(ctx context.Context, listen string) (all []sdkmetric.Option, err error) {
	if exported("METRICS") {
		reader, err := autoexport.NewMetricReader(ctx)
		if err != nil {
			return nil, fmt.Errorf("OTEL_METRICS_EXPORTER or OTEL_EXPORTER_OTLP_PROTOCOL: %w", err)
		}
		all = append(all, sdkmetric.WithReader(reader))
	}
	if listen == "" {
		return all, nil
	}
	page, err := x.serve(ctx, listen)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return append(all, sdkmetric.WithReader(page)), nil
}

// exported reports whether the environment asks for METRICS or TRACES: by an endpoint for OTLP or the name of an
// exporter, unless OTEL_SDK_DISABLED is true.
func exported(signal string) bool {
	asked := cmp.Or(os.Getenv("OTEL_"+signal+"_EXPORTER"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"),
		os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT"))
	return asked != "" && asked != "none" && os.Getenv("OTEL_SDK_DISABLED") != "true"
}

// serve serves the page.
func (x *exporting) serve(ctx context.Context, listen string) (sdkmetric.Reader, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
	if err != nil {
		return nil, err
	}
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+metricsPath,
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout,
			EnableOpenMetrics: true}))
	x.addr, x.served = lis.Addr(), make(chan struct{})
	x.page = &http.Server{Handler: mux, ReadTimeout: scrapeTimeout, WriteTimeout: 2 * scrapeTimeout,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	go func() {
		defer close(x.served)
		_ = x.page.Serve(lis) // until end
	}()
	return reader, nil
}
