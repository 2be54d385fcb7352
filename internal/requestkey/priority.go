package requestkey

// TakesPriority reports whether requests of the method have a field for the engine's priority.
func (m *Method) TakesPriority() bool { return m != nil && len(m.priority.alts) > 0 }

// PatchPriority appends the engine's priority of a level, of which the lowest is served first, to a patch: nothing
// where the level is normal, requests have no field for it, or the application has set it in the message.
func (m *Method) PatchPriority(patch []byte, level int, msg any) []byte {
	if level == 0 || !m.TakesPriority() || m.hasPriority(msg) {
		return patch
	}
	return m.priority.number(patch, int64(-level))
}

func (m *Method) hasPriority(msg any) (set bool) {
	defer harmless()
	s := open(msg, m.named, false)
	m.priority.each(&s, func(value) { set = true })
	return set
}
