package main

import (
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
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
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
// for Prometheus by an address to listen on, OTLP by OpenTelemetry's environment variables, see otlpProtocol. The OTLP
// exporters read headers, certificates and intervals from the environment by themselves.
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
		return nil, fmt.Errorf("OTLP: %w", err)
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

// newTracers is nil where the environment does not ask for OTLP.
func newTracers(ctx context.Context, about *resource.Resource) (*sdktrace.TracerProvider, error) {
	var exporter sdktrace.SpanExporter
	protocol, err := otlpProtocol("TRACES")
	switch {
	case err != nil || protocol == "":
		return nil, err
	case protocol == "grpc":
		exporter, err = otlptracegrpc.New(ctx)
	default:
		exporter, err = otlptracehttp.New(ctx)
	}
	if err != nil {
		return nil, err
	}
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about)), nil
}

// readers read the metrics: for OTLP, and for the page.
func (x *exporting) readers(ctx context.Context, listen string) (all []sdkmetric.Option, err error) {
	var exporter sdkmetric.Exporter
	protocol, err := otlpProtocol("METRICS")
	switch {
	case err != nil:
	case protocol == "grpc":
		exporter, err = otlpmetricgrpc.New(ctx)
	case protocol != "":
		exporter, err = otlpmetrichttp.New(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("OTLP: %w", err)
	}
	if exporter != nil {
		all = append(all, sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter)))
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

// otlpProtocol is grpc, http/protobuf, or empty for no OTLP, of METRICS or TRACES. OTLP is on where
// OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_<signal>_ENDPOINT is set, or OTEL_<signal>_EXPORTER is otlp, and
// off where that is none or OTEL_SDK_DISABLED is true. The protocol is http/protobuf, unless
// OTEL_EXPORTER_OTLP_PROTOCOL or OTEL_EXPORTER_OTLP_<signal>_PROTOCOL is grpc.
func otlpProtocol(signal string) (string, error) {
	setting := func(name string) string {
		if v := os.Getenv("OTEL_EXPORTER_OTLP_" + signal + "_" + name); v != "" {
			return v
		}
		return os.Getenv("OTEL_EXPORTER_OTLP_" + name)
	}
	exporter := "OTEL_" + signal + "_EXPORTER"
	switch wants := os.Getenv(exporter); {
	case os.Getenv("OTEL_SDK_DISABLED") == "true" || wants == "none":
		return "", nil
	case wants != "" && wants != "otlp":
		return "", fmt.Errorf("%s: %q is neither otlp nor none (for Prometheus set metrics in the config)", exporter, wants)
	case wants == "" && setting("ENDPOINT") == "":
		return "", nil
	}
	switch p := setting("PROTOCOL"); p {
	case "", "http/protobuf":
		return "http/protobuf", nil
	case "grpc":
		return p, nil
	default:
		return "", fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL: %q is neither grpc nor http/protobuf", p)
	}
}
