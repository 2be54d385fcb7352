package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/warmpath/warmpath/lab/enginesim/kvpublish"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/server"
)

// scraped is the content of a Prometheus page: metric names as in queries, labels, and labels with values.
type scraped struct {
	metrics, labels, values map[string]bool
}

func scrape(t *testing.T, url string) scraped {
	t.Helper()
	a, err := http.Get(url)
	require.NoError(t, err)
	defer a.Body.Close()
	require.Equal(t, http.StatusOK, a.StatusCode)
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(a.Body)
	require.NoError(t, err)
	s := scraped{map[string]bool{}, map[string]bool{}, map[string]bool{}}
	for name, f := range families {
		s.metrics[name] = true
		for _, m := range f.GetMetric() {
			if m.GetHistogram() != nil {
				s.metrics[name+"_bucket"], s.metrics[name+"_sum"], s.metrics[name+"_count"] = true, true, true
			}
			for _, l := range m.GetLabel() {
				s.labels[l.GetName()] = true
				s.values[fmt.Sprintf("%s=%q", l.GetName(), l.GetValue())] = true
			}
		}
	}
	return s
}

// busy starts a look-aside server on which every event of its dashboard has happened, and returns its metrics page.
func busy(t *testing.T) string {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})) // as serve does
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
	require.NoError(t, err)
	page := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	t.Cleanup(page.Close)
	engine := simulate(t, kvpublish.Maps, nil)
	conn := lookAsideConn(t, fmt.Sprintf(`
load_interval: 10ms
deployments:
  chat:
    policy: {kv_aware: {}}
    replicas: [{id: a, address: %q, kv_events: %q, kv_events_replay: %q, max_ongoing_requests: 1}]
`, engine.rpc.addr(), engine.kvEvents(), engine.kvEventsReplay()),
		server.Options{Logger: slog.New(slog.DiscardHandler), Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	pb := warmpathv1.NewRoutingServiceClient(conn)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	watch, err := pb.WatchReplicas(ctx)
	require.NoError(t, err)
	require.NoError(t, watch.Send(&warmpathv1.WatchReplicasRequest{Start: &warmpathv1.WatchStart{ClientId: "x", Index: true, Load: true}}))
	prompt := make([]uint32, 1000)
	require.NoError(t, engine.ask("warm", prompt, 1))
	for m := new(warmpathv1.WatchReplicasResponse); m.GetIndex() == nil; { // its events have come
		m, err = watch.Recv()
		require.NoError(t, err)
	}
	ask := &warmpathv1.ChooseReplicaRequest{
		Mode: warmpathv1.PickMode_PICK_MODE_RESERVE,
		Key:  &warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_TokenIds{TokenIds: &warmpathv1.TokenIds{Ids: prompt}}},
	}
	a, err := pb.ChooseReplica(ctx, ask)
	require.NoError(t, err)
	_, err = pb.ChooseReplica(ctx, ask)
	require.Error(t, err, "it is full")
	_, err = pb.ReportLife(ctx, &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{{
		Reservation: a.GetReservation().GetId(), Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED,
		Outcome: &warmpathv1.Outcome{Sent: true, FirstMessageUs: 1000, PromptTokens: proto.Uint32(1000), CachedTokens: proto.Uint32(992)},
	}}})
	require.NoError(t, err)
	return page.URL
}

// expressions returns all queries of a dashboard or of alert rules.
func expressions(v any) (all []string) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if text, ok := x.(string); ok && (k == "expr" || k == "query") {
				all = append(all, text)
			}
			all = append(all, expressions(x)...)
		}
	case []any:
		for _, x := range v {
			all = append(all, expressions(x)...)
		}
	}
	return all
}

// Every metric and label that the dashboard and the alerts name exists on a busy server.
func TestDashboardAndAlertsNameExistingMetrics(t *testing.T) {
	page := scrape(t, busy(t))
	name := regexp.MustCompile(`\b(?:warmpath|process|go)_[a-z_]+\b`)
	state := regexp.MustCompile(`\bwarmpath_state="[^"]*"`) // all of them are there at any time
	for file, least := range map[string]int{"dashboard.json": 30, "alerts.yaml": 10} {
		raw, err := os.ReadFile(filepath.Join("..", "docs", "observability", file))
		require.NoError(t, err)
		if strings.HasSuffix(file, ".yaml") {
			raw, err = yaml.YAMLToJSONStrict(raw)
			require.NoError(t, err)
		}
		var content any
		require.NoError(t, json.Unmarshal(raw, &content))
		named := 0
		for _, expression := range expressions(content) {
			require.Equal(t, strings.Count(expression, "("), strings.Count(expression, ")"), expression)
			for _, is := range state.FindAllString(expression, -1) {
				require.True(t, page.values[is], "%s: there is no %s (in %s)", file, is, expression)
			}
			for _, n := range name.FindAllString(expression, -1) {
				named++
				require.True(t, page.metrics[n] || page.labels[n], "%s: there is no %s (in %s)", file, n, expression)
			}
		}
		require.Greater(t, named, least, file)
	}
	// Conversely, every metric that the server counts by itself is in the dashboard.
	dashboard := readDoc(t, "docs/observability/dashboard.json")
	for n := range page.metrics {
		if strings.HasPrefix(n, "warmpath_server_") {
			require.Contains(t, dashboard, n)
		}
	}
}

// The page on observability names exactly the server's own metrics.
func TestObservabilityPageNamesEveryMetric(t *testing.T) {
	source := regexp.MustCompile(`"(warmpath\.server\.[a-z_.]+)"`)
	var there []string
	files, err := filepath.Glob("../server/*.go")
	require.NoError(t, err)
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, m := range source.FindAllStringSubmatch(string(text), -1) {
			there = append(there, m[1])
		}
	}
	var documented []string
	for _, row := range table(section(t, "docs/observability.md", "## The server's own metrics")) {
		documented = append(documented, strings.Trim(row[0], "`"))
	}
	require.ElementsMatch(t, there, documented)
}
