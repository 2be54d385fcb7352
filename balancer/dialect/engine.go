package dialect

import "google.golang.org/protobuf/encoding/protowire"

// Aborts reports whether requests of the method are to be ended by a call of their own when
// the caller goes: whether [Method.Abort] can return something.
func (m *Method) Aborts() bool { return m.Abort() != "" }

// Abort returns the method that ends the request which has the id, "" where there is none. Its
// request is a message whose field 1 is the id.
func (m *Method) Abort() string {
	if m == nil {
		return ""
	}
	return m.dialect.Abort
}

// RequestID reads the request id out of a request message, "" where it has none.
func (m *Method) RequestID(msg any) (id string) {
	v, f := m.one(slotRequestID, msg)
	v.fill(&id, f, slotRequestID)
	return id
}

// TakesRank reports whether requests of the method have a field for the data-parallel rank.
func (m *Method) TakesRank() bool { return m != nil && m.dialect.Rank != "" }

// HasRank reports whether the application has set the rank in a request message.
func (m *Method) HasRank(msg any) bool {
	v, _ := m.one(slotRank, msg)
	return v.set != 0
}

// EncodedRank returns the field of the rank as it is appended to an encoded request.
func (m *Method) EncodedRank(rank int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, m.rank, protowire.VarintType), uint64(rank))
}

// one reads what one slot needs of a request message.
func (m *Method) one(s slot, msg any) (v values, f *fields) {
	if m == nil || msg == nil || m.request.slots&s.bit() == 0 {
		return values{}, &fields{}
	}
	defer harmless()
	v, f = values{need: s.bit()}, &m.request
	f.read(msg, &v)
	return v, f
}
