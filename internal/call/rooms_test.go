package call

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The room of two legs tells the rank of the prefill replica, in 63 bits and in 31.
func TestRoomsTellTheRank(t *testing.T) {
	s := roomSet{used: make(map[int32]bool)}
	for _, ranks := range []int{0, 1, 2, 3, 7, 8, 64, 1000} {
		for rank := range max(ranks, 1) {
			room := s.take(rank, ranks)
			require.Positive(t, room)
			low := room & (1<<31 - 1)
			require.Positive(t, low)
			require.Equal(t, []int64{int64(rank), int64(rank)}, []int64{room % int64(max(ranks, 1)), low % int64(max(ranks, 1))})
			require.True(t, s.used[int32(low)])
			if rank%2 == 0 {
				s.free(room)
			}
		}
	}
}
