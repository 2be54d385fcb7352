package extproc

// Held returns the bytes of bodies that are held.
func (s *Server) Held() int64 { return s.held.Load() }
