package lookaside

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

func named(numbers ...uint32) (rs []*warmpathv1.Replica) {
	for _, n := range numbers {
		rs = append(rs, &warmpathv1.Replica{Number: n, Id: fmt.Sprint("r", n), Address: fmt.Sprintf("10.0.0.%d:1", n)})
	}
	return rs
}

func snapshot(numbers ...uint32) *warmpathv1.FleetUpdate {
	return &warmpathv1.FleetUpdate{Snapshot: true, Replicas: named(numbers...)}
}

func TestMembers(t *testing.T) {
	now := time.Unix(1000, 0)
	const grace = 30 * time.Second
	for name, c := range map[string]struct {
		do        func(m *members)
		connected string // ids
		after     time.Duration
		want      string
	}{
		"a delta": {func(m *members) {
			_, _ = m.take(&warmpathv1.FleetUpdate{Replicas: named(3), Removed: []uint32{1}})
		}, "r2", 0, "r2 r3"},
		"the last one that is connected stays": {func(m *members) {
			_, _ = m.take(&warmpathv1.FleetUpdate{Replicas: named(3), Removed: []uint32{1, 2}})
		}, "r1", time.Hour, "r3 r1"},
		"until another one is": {func(m *members) {
			_, _ = m.take(&warmpathv1.FleetUpdate{Replicas: named(3), Removed: []uint32{1, 2}})
		}, "r1 r3", 0, "r3"},
		"or it is not any more":    {func(m *members) { _, _ = m.take(snapshot()) }, "", 0, ""},
		"emptied, and still there": {func(m *members) { _, _ = m.take(snapshot()) }, "r1 r2", time.Hour, "r1 r2"},
		"lost server":              {func(m *members) { m.restart() }, "", 24 * time.Hour, "r1 r2"},
		"a new one names some, within the grace": {func(m *members) {
			m.restart()
			m.begin(now.Add(grace))
			_, _ = m.take(&warmpathv1.FleetUpdate{Snapshot: true, Replicas: named(2)})
		}, "r1 r2", grace - 1, "r2 r1"},
		"and after it": {func(m *members) {
			m.restart()
			m.begin(now.Add(grace))
			_, _ = m.take(snapshot(2))
		}, "r1 r2", grace, "r2"},
		"a new one names none": {func(m *members) {
			m.restart()
			m.begin(now.Add(grace))
			_, _ = m.take(snapshot())
		}, "r1", time.Hour, "r1"},
		"a new one lets one go within the grace": {func(m *members) {
			m.restart()
			m.begin(now.Add(grace))
			_, _ = m.take(snapshot(1, 2))
			_, _ = m.take(snapshot(2))
		}, "r1 r2", 0, "r2"},
		"remembered": {func(m *members) {
			all := m.all()
			*m = newMembers()
			m.recall(all)
		}, "", 24 * time.Hour, "r1 r2"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMembers()
			_, err := m.take(snapshot(1, 2))
			require.NoError(t, err)
			c.do(&m)
			m.settle(now.Add(c.after), func(id string) bool { return slices.Contains(strings.Fields(c.connected), id) })
			var got []string
			for _, r := range m.all() {
				got = append(got, r.ID)
			}
			require.Equal(t, c.want, strings.Join(got, " "))
		})
	}
}

func TestReplicasThatCannotBe(t *testing.T) {
	m := newMembers()
	bad := []*warmpathv1.Replica{{Number: 1}, {Number: 2, Address: "nowhere"}, {Number: 3, Id: "a b", Address: "h:1"}, {Number: 4, Address: "h:1", Weight: -1}, {Number: 5, Address: "h:1", Ranks: 1 << 31}}
	_, err := m.take(&warmpathv1.FleetUpdate{Snapshot: true, Replicas: append(bad, named(6)...)})
	require.Error(t, err)
	require.Equal(t, []uint32{6}, m.numbers())
}

func TestCaches(t *testing.T) {
	c := make(caches)
	fleet := map[uint32]replica{}
	for _, p := range named(1, 2) {
		fleet[p.GetNumber()], _ = replicaOf(p)
	}
	got := c.take(&warmpathv1.IndexUpdate{Snapshot: true, Changes: []*warmpathv1.CacheChange{
		{Replica: 1, Stored: []uint64{7, 8}},
		{Replica: 2, Rank: 1, Tier: warmpathv1.CacheTier_CACHE_TIER_HOST, BlockTokens: 16, Removed: []uint64{9}},
		{Replica: 3, Stored: []uint64{1}},
		{Replica: 1, Tier: 77, Stored: []uint64{1}},
		{Replica: 1, Rank: 1 << 30, Stored: []uint64{1}},
	}}, fleet)
	require.Equal(t, []policy.CacheChange{
		{Replica: "r1", Coarse: true, Stored: []uint64{7, 8}},
		{Replica: "r2", Rank: 1, Tier: policy.TierHost, BlockTokens: 16, Coarse: true, Removed: []uint64{9}},
	}, got)
	c.forget(map[string]bool{"r1": true})
	got = c.take(&warmpathv1.IndexUpdate{Snapshot: true}, fleet)
	require.Equal(t, []policy.CacheChange{{Replica: "r1", Coarse: true, Cleared: true}}, got)
	require.Empty(t, c.take(&warmpathv1.IndexUpdate{Snapshot: true}, fleet))
}

func TestClientsRankServersAlike(t *testing.T) {
	servers := []string{"a:1", "b:1", "c:1"}
	firsts := map[string]int{}
	for i := range 300 {
		d := fmt.Sprint("deployment", i)
		order := Rank(servers, d)
		require.Equal(t, order, Rank([]string{"c:1", "a:1", "b:1", "a:1"}, d))
		without := slices.DeleteFunc(slices.Clone(servers), func(s string) bool { return s == order[0] })
		require.Equal(t, order[1:], Rank(without, d))
		firsts[order[0]]++
	}
	for _, s := range servers {
		require.Greater(t, firsts[s], 50, s)
	}
}
