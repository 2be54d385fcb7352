package balancer

import (
	"context"
	"strconv"

	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/balancer/routing"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// rank returns the metadata that tell a replica of several data-parallel ranks which one
// was chosen. They are nil where there is one rank, where the replica is to choose, and
// where the application chose.
func rank(ctx context.Context, d *routing.Decision) metadata.MD {
	if d.Replica.Ranks <= 1 || d.Rank() < 0 {
		return nil
	}
	if out, ok := metadata.FromOutgoingContext(ctx); ok && len(out.Get(warmpathv1.MetadataDataParallelRank)) > 0 {
		return nil
	}
	return metadata.MD{warmpathv1.MetadataDataParallelRank: {strconv.Itoa(d.Rank())}}
}
