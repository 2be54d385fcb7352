package call

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	_ "github.com/warmpath/warmpath/internal/builtin"
	enginepb "github.com/warmpath/warmpath/internal/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/router"
)

// A kept turn is used once, for a prompt and a prefill replica that match, while its decode replica holds it.
func TestPulls(t *testing.T) {
	var now = time.Unix(1000, 0)
	const session = "s"
	whole := router.Member{Attributes: policy.Attributes{ID: "d", Address: "d:1", Pair: "r1"}}
	for name, tt := range map[string]struct {
		after   time.Duration
		to      policy.Attributes
		session string
		other   bool                      // the prompt begins with something else
		change  func(*router.Member) bool // of the decode replica; false = it leaves
		down    bool                      // its connection is lost
		back    bool                      // there is another one
		taken   bool
		stays   bool // for another call
	}{
		"in time":          {after: turnLease, taken: true},
		"too late":         {after: turnLease + 1},
		"another pair":     {to: policy.Attributes{ID: "p", Pair: "r2"}, stays: true},
		"itself":           {to: policy.Attributes{ID: "d", Pair: "r1"}, stays: true},
		"another session":  {session: "t", stays: true},
		"another prompt":   {other: true, stays: true},
		"left":             {change: func(*router.Member) bool { return false }},
		"draining":         {change: func(m *router.Member) bool { m.Draining = true; return true }, stays: true},
		"elsewhere":        {change: func(m *router.Member) bool { m.Address = "d:2"; return true }},
		"restarted":        {change: func(m *router.Member) bool { m.Instance = "2"; return true }},
		"not connected":    {down: true},
		"connected anew":   {down: true, back: true},
		"another capacity": {change: func(m *router.Member) bool { m.MaxOngoing = 7; return true }, taken: true},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := router.FromConfig(&policy.Config{}, nil)
			require.NoError(t, err)
			defer func() { require.NoError(t, r.Close()) }()
			r.Fleet.Set([]router.Member{whole})
			r.Fleet.Connect()
			var p pulls
			p.keep(session, r.View().ByID("d"), requestkey.Held{Params: []byte("params")}, now)
			d := whole
			if tt.change != nil && !tt.change(&d) {
				d.ID = "another"
			}
			r.Fleet.Set([]router.Member{d})
			if r.Fleet.Connect(); tt.down {
				r.Fleet.Disconnect()
			}
			if tt.back {
				r.Fleet.Connect()
			}
			take := func() []byte {
				to, of := tt.to, tt.session
				if to.ID == "" {
					to = policy.Attributes{ID: "p", Pair: "r1"}
				}
				if of == "" {
					of = session
				}
				return p.take(of, policy.NewReplica(to, 0, nil, nil), r.View(), func(h *requestkey.Held) bool {
					require.Equal(t, "params", string(h.Params))
					return !tt.other
				}, now.Add(tt.after))
			}
			require.Equal(t, tt.taken, take() != nil)
			require.Nil(t, take(), "once")
			require.Equal(t, tt.stays, p.size > 0)
			p.forget(session)
			require.Zero(t, p.size+len(p.of)+p.all.Len())
		})
	}
}

// The number of kept turns is bounded, the oldest go first, and the next addition removes expired ones.
func TestPullsAreBounded(t *testing.T) {
	var p pulls
	now, d := time.Unix(1000, 0), connectedReplica()
	held := requestkey.Held{Params: make([]byte, 1<<20)}
	for i := range 100 {
		p.keep(fmt.Sprint(i), d, held, now)
		p.keep("again", d, held, now)
		require.LessOrEqual(t, p.size, maxPulls)
	}
	require.Len(t, p.of, 63)
	require.NotNil(t, p.of["again"])
	require.Nil(t, p.of["0"])
	p.keep("later", d, held, now.Add(turnLease+1))
	require.Len(t, p.of, 1)
	held.Params = make([]byte, maxPulls)
	p.keep("too large", d, held, now)
	require.Zero(t, p.size+len(p.of)+p.all.Len())
}

// A turn that ends after its session is not kept.
func TestPullsOfSessions(t *testing.T) {
	m := new(requestkey.Table).Lookup("/vllm.grpc.engine.VllmEngine/Generate")
	request := &enginepb.GenerateRequest{Input: &enginepb.GenerateRequest_Tokenized{
		Tokenized: &enginepb.TokenizedInput{InputIds: []uint32{1, 2, 3}},
	}}
	params := `{"do_remote_decode": true, "remote_num_tokens": 4, "remote_blocks_expiry_time": 7}`
	last := &enginepb.GenerateResponse{Response: &enginepb.GenerateResponse_Complete{
		Complete: &enginepb.GenerateComplete{OutputIds: []uint32{7, 8}, KvTransferParamsJson: &params},
	}}
	h := NewHandle(nil, nil)
	kept := func(r *Route) bool {
		c := &Call{Scope: &Scope{handle: h}, route: r, legs: &legs{session: "s", turn: m.Turn(request)}}
		c.reserved.held.Decision.Replica = connectedReplica()
		c.legs.keeps(c, last)
		return h.pulls.size > 0
	}
	s := NewSession("s")
	s.uses(h)
	require.True(t, kept(&Route{of: s}))
	s.End()
	require.Zero(t, h.pulls.size)
	require.False(t, kept(&Route{of: s}))
	require.True(t, kept(nil), "one without a life of its own")
}
