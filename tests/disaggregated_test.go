package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/race"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
)

// Each request goes to a prefill and a decode engine, which check their legs. The answer equals that of an unsplit
// call.
func TestDisaggregatedFlows(t *testing.T) {
	for _, flow := range kvFlows {
		t.Run(flow.name, func(t *testing.T) {
			f := startKVFleet(t, flow, kvOptions{prefills: 2, decodes: 2, lease: long})
			for i := range 20 { // one by one: where the prefill engines are busy, some are served whole
				_, err := f.call(deadline(t), fmt.Sprint(i))
				require.NoError(t, err, i)
			}
			whole, prefills, decodes := f.sums()
			require.Equal(t, []int{0, 20, 20}, []int{whole, prefills, decodes})
			f.nothingReserved()
			pulled, dropped := f.transfers()
			require.Equal(t, 20, pulled+dropped)
			if flow.connector != grpcserver.Rooms { // there a call may end before the prefill engine has the pull's report
				require.Zero(t, dropped)
			}
		})
	}
}

// What is cached of a prompt is told of the prefill leg, predicted and reported, in the Decision and on spans: to the
// decode replica the whole prompt is cached.
func TestDisaggregatedCachedTokens(t *testing.T) {
	flow := kvFlows[slices.IndexFunc(kvFlows, func(f kvFlow) bool { return f.name == "VllmEngine NIXL" })]
	f := startKVFleet(t, flow, kvOptions{prefills: 1, decodes: 1, lease: long})
	rec, tracer := recorder(t)
	first, shared := kvPrompt("first"), splitPrompt/2
	second := slices.Concat(first[:shared], kvPrompt("second")[shared:])
	for i, prompt := range [][]uint32{first, second} {
		var d client.Decision
		ctx, span := tracer.Tracer("").Start(client.WithDecision(deadline(t), &d), "call")
		_, _, err := flow.send(ctx, f.cc, kvRequest{fmt.Sprint("cached ", i), prompt, splitOutput})
		span.End()
		require.NoError(t, err)
		require.Equal(t, "p0", d.Prefill)
		require.Equal(t, "d0", d.Replica)
		for what, tokens := range map[string]int{"predicted": d.MatchedTokens, "reported": d.Usage.CachedTokens} {
			if i == 0 {
				require.Zero(t, tokens, what)
			} else {
				require.Positive(t, tokens, what)
				require.LessOrEqual(t, tokens, shared, what)
			}
		}
		_, events := decided(rec.Ended()[i:])
		require.Len(t, events, 2) // one of each leg
		for _, e := range events {
			require.EqualValues(t, d.MatchedTokens, e[telemetry.KeyMatchedTokens].AsInt64(), e)
		}
	}
}

// An engine dies at each moment of a request. The request is served unless the application already has a part of the
// answer. No reservation is left.
func TestDisaggregatedDeaths(t *testing.T) {
	all := []string{"p", "d", "pd"}
	for i, flow := range kvFlows {
		for j, victims := range all {
			for moment := range grpcserver.Moments {
				if race.Enabled && (i+j+int(moment))%len(all) > 0 {
					continue // each moment of each flow once
				}
				t.Run(fmt.Sprintf("%s/%s/%d", flow.name, victims, moment), func(t *testing.T) {
					t.Parallel()
					disaggregatedDeath(t, flow, victims, moment)
				})
			}
		}
	}
}

func disaggregatedDeath(t *testing.T, flow kvFlow, victims string, at grpcserver.Moment) {
	var fleet atomic.Pointer[kvFleet]
	var struck atomic.Bool
	f := startKVFleet(t, flow, kvOptions{prefills: 2, decodes: 2, lease: 30 * time.Second,
		moment: func(e *kvEngine, m grpcserver.Moment, id string) {
			if m != at || !struck.CompareAndSwap(false, true) {
				return
			}
			for _, role := range victims {
				if role == rune(e.ID[0]) {
					e.crash()
				} else if other := fleet.Load().reserved(string(role)); other != nil {
					other.crash()
				}
			}
		},
	})
	fleet.Store(f)
	messages, err := f.call(deadline(t), "r")
	// If the legs meet in rooms, the whole answer may arrive before the prefill leg's answer, which the call does not
	// wait for.
	require.True(t, struck.Load() || flow.connector == grpcserver.Rooms && at == grpcserver.PrefillAnswers, "the moment did not come")
	if messages == 0 || err == nil {
		require.NoError(t, err)
	} else {
		require.Contains(t, victims, "d", "%v", err)
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	}
	f.nothingReserved()
}

// Engines die and come back under load.
func TestDisaggregatedDeathsUnderLoad(t *testing.T) {
	calm := race.Of[int64](50, 10) // calls between two deaths
	for _, flow := range kvFlows {
		t.Run(flow.name, func(t *testing.T) {
			o := kvOptions{prefills: 2, decodes: 2, lease: 250 * time.Second}
			f := startKVFleet(t, flow, o)
			calls := startLoad(t, 8, func(w, i int) {
				messages, err := f.call(deadlineOf(time.Minute), fmt.Sprintf("%d of %d", i, w))
				if err != nil && messages == 0 {
					t.Errorf("%d of %d: %v", i, w, err)
				}
			})
			calls.advance(calm)
			f.killInTurn(o, func() { calls.advance(calm) })
			calls.end()
			f.nothingReserved()
		})
	}
}

// Calls end at random moments, 10,000 in all. No reservation is left.
func TestDisaggregatedCancels(t *testing.T) {
	const workers = 16
	calls := race.Of(10_000, 500) / len(kvFlows)
	if testing.Short() {
		calls /= 20
	}
	for _, flow := range kvFlows {
		t.Run(flow.name, func(t *testing.T) {
			f := startKVFleet(t, flow, kvOptions{prefills: 2, decodes: 2})
			start := time.Now()
			_, err := f.call(deadline(t), "first")
			require.NoError(t, err)
			took := time.Since(start)
			var next, served, cancelled atomic.Int64
			var all sync.WaitGroup
			for w := range workers {
				all.Go(func() {
					rng := rand.New(rand.NewPCG(7, uint64(w)))
					for i := next.Add(1); (i <= int64(calls) || cancelled.Load() == 0) && !t.Failed(); i = next.Add(1) {
						ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.Int64N(3*int64(took))))
						switch _, err := f.call(ctx, fmt.Sprint(i)); status.Code(err) {
						case codes.OK:
							served.Add(1)
						case codes.DeadlineExceeded, codes.Canceled:
							cancelled.Add(1)
						default:
							t.Errorf("%d: %v", i, err)
						}
						cancel()
					}
				})
			}
			all.Wait()
			t.Logf("%d served, %d ended early, by %v", served.Load(), cancelled.Load(), 3*took)
			f.nothingReserved()
			_, err = f.call(deadline(t), "last")
			require.NoError(t, err)
		})
	}
}
