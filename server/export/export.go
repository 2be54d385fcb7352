// Package export gets a server's metrics out: as a page for Prometheus, and over OTLP.
//
// The rule. Nothing is exported unless it is asked for: the page by an address to listen on, OTLP by OpenTelemetry's standard
// environment variables. OTLP is on where OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_METRICS_ENDPOINT says where to, or
// OTEL_METRICS_EXPORTER names otlp, and off where that is none or OTEL_SDK_DISABLED is true. The protocol is http/protobuf,
// or grpc where OTEL_EXPORTER_OTLP_PROTOCOL or OTEL_EXPORTER_OTLP_METRICS_PROTOCOL says so; the exporters read the
// rest (headers, certificates, interval) by themselves. What is not asked for costs nothing: instruments without a reader
// are not enabled.
package export

import (
	"context"
	"errors"
	"fmt"
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
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
)

// Path is where Prometheus finds the page.
const Path = "/metrics"

// Bounds of who reads the page.
const (
	maxScrapes    = 4
	scrapeTimeout = 10 * time.Second
)

// An Exporter gets metrics out.
type Exporter struct {
	provider *sdkmetric.MeterProvider // nil where nothing was asked for
	page     *http.Server             // nil where no page was
	served   chan struct{}
	addr     net.Addr
}

// Start begins to export. listen is the address of the page, empty for none; getenv is os.Getenv, but in tests, and is read
// for whether there is OTLP: its exporters read the environment itself. Errors name what is wrong with either.
func Start(ctx context.Context, listen string, getenv func(string) string) (*Exporter, error) {
	if getenv == nil {
		getenv = os.Getenv
	}
	x := new(Exporter)
	var readers []sdkmetric.Option
	otlp, err := otlpReader(ctx, getenv)
	if err != nil {
		return nil, fmt.Errorf("OTLP: %w", err)
	}
	if otlp != nil {
		readers = append(readers, sdkmetric.WithReader(otlp))
	}
	if listen != "" {
		page, err := x.serve(ctx, listen)
		if err != nil {
			return nil, fmt.Errorf("metrics.listen: %w", err)
		}
		readers = append(readers, sdkmetric.WithReader(page))
	}
	if len(readers) == 0 {
		return x, nil
	}
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "warmpath")), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		x.close()
		return nil, err
	}
	x.provider = sdkmetric.NewMeterProvider(append(readers, sdkmetric.WithResource(about))...)
	return x, nil
}

// Meter is what to record through.
func (x *Exporter) Meter() metric.MeterProvider {
	if x.provider == nil {
		return noop.NewMeterProvider()
	}
	return x.provider
}

// Addr is where the page is, nil where there is none.
func (x *Exporter) Addr() net.Addr { return x.addr }

// Shutdown sends what was not sent yet, and ends. It must be called once.
func (x *Exporter) Shutdown(ctx context.Context) error {
	var err error
	if x.provider != nil {
		err = x.provider.Shutdown(ctx)
	}
	x.close()
	return err
}

func (x *Exporter) close() {
	if x.page != nil {
		_ = x.page.Close()
		<-x.served
	}
}

// otlpReader is nil where the environment does not ask for OTLP.
func otlpReader(ctx context.Context, getenv func(string) string) (sdkmetric.Reader, error) {
	var exporter sdkmetric.Exporter
	protocol, err := otlpProtocol(getenv)
	switch {
	case err != nil || protocol == "":
		return nil, err
	case protocol == "grpc":
		exporter, err = otlpmetricgrpc.New(ctx)
	default:
		exporter, err = otlpmetrichttp.New(ctx)
	}
	if err != nil {
		return nil, err
	}
	return sdkmetric.NewPeriodicReader(exporter), nil
}

// otlpProtocol is grpc, http/protobuf, or empty for no OTLP.
func otlpProtocol(getenv func(string) string) (string, error) {
	first := func(names ...string) string {
		for _, name := range names {
			if v := getenv(name); v != "" {
				return v
			}
		}
		return ""
	}
	switch wants := getenv("OTEL_METRICS_EXPORTER"); {
	case getenv("OTEL_SDK_DISABLED") == "true" || wants == "none":
		return "", nil
	case wants != "" && wants != "otlp":
		return "", fmt.Errorf("OTEL_METRICS_EXPORTER: %q is neither otlp nor none (for Prometheus set metrics.listen in the config)", wants)
	case wants == "" && first("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT") == "":
		return "", nil
	}
	switch p := first("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); p {
	case "", "http/protobuf":
		return "http/protobuf", nil
	case "grpc":
		return "grpc", nil
	default:
		return "", fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL: %q is neither grpc nor http/protobuf", p)
	}
}

// serve serves the page.
func (x *Exporter) serve(ctx context.Context, listen string) (sdkmetric.Reader, error) {
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
	mux.Handle("GET "+Path, promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout, EnableOpenMetrics: true}))
	x.addr, x.served = lis.Addr(), make(chan struct{})
	x.page = &http.Server{Handler: mux, ReadTimeout: scrapeTimeout, WriteTimeout: 2 * scrapeTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	go func() {
		defer close(x.served)
		_ = x.page.Serve(lis) // ends with Shutdown
	}()
	return reader, nil
}
