package tests

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/warmpath/warmpath/client"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/server"
)

// A server whose clients decide for themselves shows their decisions by reason, and what they predicted and measured to
// be cached.
func TestLookasideShowsDecisionsOfClients(t *testing.T) {
	for _, policy := range []string{"kv_aware", "round_robin"} {
		t.Run(policy, func(t *testing.T) {
			engines := [2]*grpcserver.Server{
				startEngine(t, grpcserver.Config{Virtual: true}), startEngine(t, grpcserver.Config{Virtual: true}),
			}
			reader := sdkmetric.NewManualReader()
			conn := lookAsideConn(t, fmt.Sprintf(
				"load_interval: 20ms\ndeployments:\n  chat:\n    policy: {%s: {}}\n    replicas: [{address: %q}, {address: %q}]\n",
				policy, engines[0].Addr(), engines[1].Addr()),
				server.Options{
					Logger: slog.New(slog.DiscardHandler),
					Meter:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
				})
			cc := dial(t, "warmpath://"+conn.Target()+"/chat")

			reasons := make(map[string]uint64)
			var prompt, predicted, measured uint64
			for n := range 6 {
				ids := make([]uint32, 64*16)
				for i := range ids {
					ids[i] = uint32(5000*(n%2) + i)
				}
				q := generation(fmt.Sprint("r", n))
				q.Input = &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: ids}}
				var d client.Decision
				stream, err := enginepb.NewVllmEngineClient(cc).Generate(client.WithDecision(deadline(t), &d), q)
				for err == nil {
					_, err = stream.Recv()
				}
				require.NoError(t, ignoreEOF(err))
				reasons[string(d.Reason)]++
				prompt += uint64(len(ids))
				predicted += uint64(d.MatchedTokens)
				measured += uint64(d.Usage.CachedTokens)
			}
			require.NotZero(t, measured)

			var s *warmpathv1.DeploymentStatus
			eventually(t, "the clients' reports have come", func() bool {
				a, err := warmpathv1.NewStatusServiceClient(conn).GetStatus(deadline(t), &warmpathv1.GetStatusRequest{})
				require.NoError(t, err)
				s = a.GetDeployments()[0]
				n := uint64(0)
				for _, c := range s.GetDecisions() {
					n += c.GetCount()
				}
				return n == 6 && s.GetCachedTokens().GetPrompt() == prompt
			})
			shown := make(map[string]uint64)
			for _, c := range s.GetDecisions() {
				require.Equal(t, policy, c.GetPolicy())
				shown[c.GetReason()] = c.GetCount()
			}
			require.Equal(t, reasons, shown)
			require.Equal(t, predicted, s.GetCachedTokens().GetPredicted())
			require.Equal(t, measured, s.GetCachedTokens().GetMeasured())

			var all metricdata.ResourceMetrics
			require.NoError(t, reader.Collect(deadline(t), &all))
			counted, tokens := make(map[string]uint64), make(map[string]uint64)
			for _, scope := range all.ScopeMetrics {
				for _, m := range scope.Metrics {
					into, key := counted, "warmpath.reason"
					switch m.Name {
					case "warmpath.server.decisions":
					case "warmpath.server.prompt_tokens":
						into, key = tokens, "warmpath.state"
					default:
						continue
					}
					for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
						v, _ := p.Attributes.Value(attribute.Key(key))
						into[v.AsString()] = uint64(p.Value)
					}
				}
			}
			require.Equal(t, reasons, counted)
			require.Equal(t, map[string]uint64{"all": prompt, "predicted": predicted, "cached": measured}, tokens)
		})
	}
}

// The reasons in a client's report are bounded: those that the server does not know count as one.
func TestLookasideBoundsReportedDecisions(t *testing.T) {
	conn := lookAsideConn(t, "deployments:\n  chat:\n    policy: {round_robin: {}}\n    replicas: [{address: \"127.0.0.1:1\"}]\n",
		server.Options{Logger: slog.New(slog.DiscardHandler)})
	watch, err := warmpathv1.NewRoutingServiceClient(conn).WatchReplicas(deadline(t))
	require.NoError(t, err)
	require.NoError(t, watch.Send(&warmpathv1.WatchReplicasRequest{Start: &warmpathv1.WatchStart{ClientId: "x"}}))
	r := &warmpathv1.DecisionReport{
		Counts:       []*warmpathv1.DecisionCount{{Reason: "round_robin", Count: 3}},
		CachedTokens: &warmpathv1.CachedTokens{Prompt: 100, Predicted: 200, Measured: 50},
	}
	for i := range 100 {
		r.Counts = append(r.Counts, &warmpathv1.DecisionCount{Policy: fmt.Sprint(i), Reason: fmt.Sprint(i), Count: 1})
	}
	require.NoError(t, watch.Send(&warmpathv1.WatchReplicasRequest{Decisions: r}))
	shown := make(map[string]uint64)
	eventually(t, "the report has come", func() bool {
		a, err := warmpathv1.NewStatusServiceClient(conn).GetStatus(deadline(t), &warmpathv1.GetStatusRequest{})
		require.NoError(t, err)
		s := a.GetDeployments()[0]
		clear(shown)
		for _, c := range s.GetDecisions() {
			shown[c.GetPolicy()+" "+c.GetReason()] = c.GetCount()
		}
		return s.GetCachedTokens().GetPrompt() == 100 && s.GetCachedTokens().GetPredicted() == 100
	})
	require.Equal(t, map[string]uint64{"round_robin round_robin": 3, "round_robin other": 100}, shown)
}
