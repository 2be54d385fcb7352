package channel

import (
	"context"
	"strconv"

	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/routing"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// RankMetadata returns the metadata with the data-parallel rank that was chosen. They are nil where there is one rank, where
// the replica is to choose, and where the application chose.
func RankMetadata(ctx context.Context, d *routing.Decision) metadata.MD {
	if d.Replica.Ranks <= 1 || d.Rank() < 0 || len(metadata.ValueFromOutgoingContext(ctx, warmpathv1.MetadataDataParallelRank)) > 0 {
		return nil
	}
	return metadata.MD{warmpathv1.MetadataDataParallelRank: {strconv.Itoa(d.Rank())}}
}

// RankMetadata is [RankMetadata] for an attempt that is about to be sent; a message that has a rank is the application's
// choice, too. The rank is written into the message where its dialect has a field for it.
func (c *Call) RankMetadata(ctx context.Context) metadata.MD {
	d := &c.booking.Decision
	md := RankMetadata(ctx, d)
	if r := c.rare.Load(); md == nil && (r == nil || r.rank == 0) {
		return nil
	}
	m := c.dialect()
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.HasRank(c.msg) {
		md = nil
	}
	rank := 0
	if md != nil && m.TakesRank() {
		rank = d.Rank() + 1
	}
	c.more().rank = rank
	return md
}

// MayRank reports whether the next attempt may have a rank to write into its message.
func (c *Call) MayRank() bool {
	if m := c.dialect(); m != nil && !m.TakesRank() {
		return false
	}
	r := c.booking.Decision.Replica
	return r == nil || r.Ranks > 1 || !c.brought.Load()
}

// EncodedRank returns what is appended to an encoded message of the attempt under way, nil where it gets no rank.
func (c *Call) EncodedRank(msg any) []byte {
	c.mu.Lock()
	rank := 0
	if r := c.rare.Load(); r != nil {
		rank = r.rank
	}
	c.mu.Unlock()
	if m := c.dialect(); rank > 0 && !m.HasRank(msg) {
		return m.EncodedRank(rank - 1)
	}
	return nil
}

// dialect returns how the messages of the call's method are read, nil where no balancer is bound.
func (c *Call) dialect() *dialect.Method {
	if b := c.handle.Bound(); b != nil {
		return b.Dialects.Lookup(c.Request.Method)
	}
	return nil
}
