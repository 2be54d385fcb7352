package dialect

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// checkRank validates the place of the rank: it is written there without the message's type, so it is a number.
func (p Path) checkRank() error {
	alts, err := p.parse()
	if err != nil || p == "" {
		return err
	}
	if len(alts) != 1 || len(alts[0]) != 1 || alts[0][0].num == 0 || alts[0][0].list || alts[0][0].key != "" {
		return fmt.Errorf("%q: want the number of one field of the request", string(p))
	}
	return nil
}

// TakesRank reports whether requests of the method have a field for the data-parallel rank.
func (m *Method) TakesRank() bool { return m != nil && m.dialect.Rank != "" }

// HasRank reports whether the application has set the rank in a request message.
func (m *Method) HasRank(msg any) bool {
	if !m.TakesRank() || msg == nil {
		return false
	}
	defer harmless()
	v := values{need: slotRank.bit()}
	m.request.read(msg, &v)
	return v.set != 0
}

// EncodedRank returns the field of the rank as it is appended to an encoded request.
func (m *Method) EncodedRank(rank int) []byte {
	num := protowire.Number(m.request.leaf(slotRank).path[0].num)
	return protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), uint64(rank))
}
