package tests

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/client"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
)

// BenchmarkHandOver compares a call in two legs with a call served whole, at replicas that answer at once. The
// difference is the cost of the client's hand-over.
func BenchmarkHandOver(b *testing.B) {
	for _, legs := range []bool{false, true} {
		name := map[bool]string{false: "whole", true: "split"}[legs]
		b.Run(name, func(b *testing.B) {
			f, q, split, n := startLegFleet(b, 1, 1), request(), 0, 0
			stub := vllmpb.NewInferenceClient(f.cc)
			if !legs {
				q.Kv.KvTransferParams = handed("mine") // it is not split
			}
			b.ReportAllocs()
			for b.Loop() {
				q.GetTokenIds().Ids[0]++ // nothing is cached
				var d client.Decision
				_, err := stub.Generate(client.WithDecision(b.Context(), &d), q)
				require.NoError(b, err)
				if d.Prefill != "" {
					split++
				}
				if n++; n%64 == 0 {
					f.by["p0"].requests()
					f.by["d0"].requests()
				}
			}
			b.ReportMetric(float64(split)/float64(n), "split")
		})
	}
}
