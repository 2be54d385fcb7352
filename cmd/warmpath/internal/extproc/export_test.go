package extproc

// Held returns the bytes of bodies that are held.
func (s *Server) Held() int64 { return s.held.Load() }

// BodyOf returns the bytes of a body in a message that a stream receives or sends.
func BodyOf(m any) int {
	switch m := m.(type) {
	case *message:
		read := message{raw: m.raw}
		_ = read.read()
		return len(read.body)
	case answer:
		if len(m) >= 2 {
			return m[1].Len()
		}
	}
	return 0
}
