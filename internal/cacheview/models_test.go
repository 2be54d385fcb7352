package cacheview

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/poweroftwo"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

func TestNameThatBlocksAreHashedWith(t *testing.T) {
	for _, tt := range []struct {
		name     string
		reported [][]string // what the replicas with reports declare
		want     map[string]string
	}{
		{name: "no reports", want: map[string]string{"": "", "m": "m"}},
		{name: "no replica declares a model", reported: [][]string{nil}, want: map[string]string{"": "", "m": ""}},
		{name: "one model", reported: [][]string{{"m"}}, want: map[string]string{"": "m", "m": "m", "other": "other"}},
		{name: "an alias", reported: [][]string{{"m", "alias"}}, want: map[string]string{"alias": "m", "": "m"}},
		{name: "two models", reported: [][]string{{"m"}, {"n"}}, want: map[string]string{"": "", "m": "m", "n": "n"}},
		{name: "some declare none", reported: [][]string{{"m"}, nil}, want: map[string]string{"": "", "m": "m", "n": ""}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fleet := policytest.Fleet(max(len(tt.reported), 1))
			for i, declared := range tt.reported {
				fleet[i].Models = declared
			}
			w := newWorld(t, defaults, fleet...)
			for i := range tt.reported {
				w.report(policy.CacheChange{Replica: fleet[i].ID, BlockTokens: 16, Stored: []uint64{1}})
			}
			for model, want := range tt.want {
				assert.Equal(t, kvindex.SeedFor(want, "", ""), w.Seed(&policy.Request{Model: model}), model)
			}
		})
	}
}

// A request finds what an engine reports, whether or not both name the model.
func TestTheModelDoesNotHideReports(t *testing.T) {
	p := tokens(1, 320)
	for _, tt := range []struct{ declared, requested string }{{"", "m"}, {"m", ""}, {"m", "m"}, {"", ""}} {
		fleet := policytest.Fleet(2)
		for i := range fleet {
			if tt.declared != "" {
				fleet[i].Models = []string{tt.declared}
			}
		}
		w := newWorld(t, defaults, fleet...)
		q := &policy.Request{Model: tt.requested}
		w.report(policy.CacheChange{Replica: "r1", BlockTokens: 16,
			Stored: kvindex.AppendTokens(nil, p, 16, kvindex.SeedFor(tt.declared, "", ""))})
		b := w.cut(p)
		b.Cut(policy.Prompt{Tokens: p}, len(p), w.Grain(q.Model), w.Seed(q))
		var f Found
		w.Match(w.fleet, b, &f)
		require.Len(t, f.Holders, 1, "declared %q, requested %q", tt.declared, tt.requested)
		assert.EqualValues(t, 20, f.Holders[0].Depth)
	}
}

// A model that a replica loads at run time has the block size of its engine.
func TestBlockSizeOfAModelThatIsAddedLater(t *testing.T) {
	fleet := policytest.Fleet(2)
	fleet[1].Models = []string{"a"}
	pol, err := poweroftwo.New(poweroftwo.Config{})
	require.NoError(t, err)
	r := policytest.NewRouter(t, pol, fleet)
	x := New(defaults)
	x.FleetChanged(policy.FleetChange{Added: r.View().Replicas()})
	x.Fleet(r.View())
	report := func() { x.CacheChanged([]policy.CacheChange{{Replica: "r1", BlockTokens: 64, Stored: []uint64{1}}}) }
	report()
	require.Equal(t, 64, x.Grain("a").Tokens)
	fleet[1].Models = []string{"a", "b"}
	r.Fleet.Set(fleet)
	x.Fleet(r.View())
	report()
	require.Equal(t, 64, x.Grain("b").Tokens)
	require.Zero(t, x.Stats().Refused)
}

// A replica may declare its models after its first report.
func TestModelsThatAreDeclaredLater(t *testing.T) {
	p := tokens(1, 320)
	fleet := policytest.Fleet(2)
	pol, err := poweroftwo.New(poweroftwo.Config{})
	require.NoError(t, err)
	r := policytest.NewRouter(t, pol, fleet)
	x := New(defaults)
	x.FleetChanged(policy.FleetChange{Added: r.View().Replicas()})
	x.Fleet(r.View())
	report := func(model string) {
		x.CacheChanged([]policy.CacheChange{{Replica: "r1", BlockTokens: 16, Cleared: true,
			Stored: kvindex.AppendTokens(nil, p, 16, kvindex.SeedFor(model, "", ""))}})
	}
	report("")
	fleet[1].Models = []string{"m"}
	r.Fleet.Set(fleet)
	report("m")
	now := x.Fleet(r.View())
	for _, requested := range []string{"m", ""} {
		var b rendezvous.Blocks
		b.Cut(policy.Prompt{Tokens: p}, len(p), x.Grain(requested), x.Seed(&policy.Request{Model: requested}))
		var f Found
		x.Match(now, &b, &f)
		require.Len(t, f.Holders, 1, "requested %q", requested)
	}
}
