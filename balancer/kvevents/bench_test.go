package kvevents

import (
	"context"
	"fmt"
	"testing"

	"github.com/tinylib/msgp/msgp"
)

// BenchmarkDecode decodes a batch that stores a prompt's blocks and one that removes them.
func BenchmarkDecode(b *testing.B) {
	for _, blocks := range []int{1, 64, 512} {
		b.Run(fmt.Sprint("blocks=", blocks), func(b *testing.B) {
			const size = 16
			hashes, tokens := array{}, array{}
			for i := range blocks {
				hashes = append(hashes, uint64(i)+1<<60)
				for j := range size {
					tokens = append(tokens, i*size+j)
				}
			}
			storing, _ := msgp.AppendIntf(nil, array{1.5, array{array{"BlockStored", hashes, nil, tokens, size, nil, "GPU"}}})
			removing, _ := msgp.AppendIntf(nil, array{1.5, array{array{"BlockRemoved", hashes, "GPU"}}})
			b.ReportAllocs()
			b.SetBytes(int64(len(storing) + len(removing)))
			for b.Loop() {
				decode(context.Background(), storing)
				decode(context.Background(), removing)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*blocks*b.N), "ns/block")
		})
	}
}
