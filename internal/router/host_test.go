package router

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A host without connections of its own takes all of them up at once, also those that join later.
func TestConnect(t *testing.T) {
	r, err := NewRouter(Options{Policy: choosing(leastLoaded)})
	require.NoError(t, err)
	r.Fleet.Set(members(3))
	require.ErrorIs(t, r.Reserve(t.Context(), new(policy.Request), new(Reservation), How{NoWait: true}), ErrNotConnected)
	r.Fleet.Connect()
	require.Len(t, r.View().Connected(), 3)
	v := r.View()
	r.Fleet.Connect()
	require.Same(t, v, r.View(), "no change")
	r.Fleet.Set(members(4))
	r.Fleet.Connect()
	require.Len(t, r.View().Connected(), 4)
	pick(t, r, new(policy.Request))
}

func TestHashedPrompts(t *testing.T) {
	for _, tt := range []struct {
		hashes, size, unit, length int
		tokens                     int
		want                       string
	}{
		{2, 16, 1, 32, 32, ""},
		{3, 16, 1, 33, 33, ""},
		{1, 64, policy.BytesPerToken, 1, 1, ""},
		{2, 64, policy.BytesPerToken, 70, 18, ""},
		{2, 16, 1, 33, 0, "2 hashes do not fit a length of 33 in blocks of 16"},
		{3, 16, 1, 32, 0, "3 hashes do not fit"},
		{0, 16, 1, 0, 0, "must be positive"},
		{1, 0, 1, 1, 0, "must be positive"},
		{1, 16, 0, 1, 0, "must be positive"},
	} {
		h := &policy.Hashed{Hashes: make([]uint64, tt.hashes), Size: tt.size, Unit: tt.unit, Length: tt.length}
		if tt.want != "" {
			require.ErrorContains(t, h.Check(), tt.want)
			continue
		}
		require.NoError(t, h.Check())
		var q policy.Request
		q.SetPrompt(policy.Prompt{Hashed: h})
		require.Equal(t, tt.tokens, q.PromptTokens)
		require.False(t, q.Prompt.Empty())
		DropPrompt(&q)
		require.True(t, q.Prompt.Empty())
	}
}
