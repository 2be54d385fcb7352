package dialect

import (
	"math"

	"github.com/warmpath/warmpath/balancer/routing"
)

// Usage reads the usage that one response message carries into u, which starts
// as [routing.NoUsage], and reports whether there was any. It is called for
// every message of a call: totals raise u, deltas are added to it. A message
// that counts prompt tokens and leaves cached tokens at zero says that none were
// cached, since encoded zeros are left out.
func (m *Method) Usage(u *routing.Usage, msg any) bool {
	if m == nil || u == nil || msg == nil || m.response.slots == 0 {
		return false
	}
	defer harmless()
	return m.readUsage(u, msg)
}

func (m *Method) readUsage(u *routing.Usage, msg any) (found bool) {
	f := &m.response
	v := values{need: f.slots}
	f.read(msg, &v)
	if v.set|v.sums == 0 {
		return false
	}
	if n, ok := v.count(f, slotUsageDelta); ok {
		u.OutputTokens = min(max(u.OutputTokens, 0)+n, math.MaxInt32)
		found = true
	}
	n, ok := v.count(f, slotUsageOutput)
	found = raise(&u.OutputTokens, n, ok) || found
	prompt, ok := v.count(f, slotUsagePrompt)
	found = raise(&u.PromptTokens, prompt, ok) || found
	n, ok = v.count(f, slotUsageCached)
	if !ok && prompt > 0 && m.zeroIsAbsent(&v) {
		n, ok = 0, true
	}
	found = raise(&u.CachedTokens, n, ok) || found
	if raw, ok := v.first(f, slotUsageJSON); ok {
		found = readUsageJSON(u, bytesOf(raw)) || found
	}
	return found
}

// zeroIsAbsent reports whether cached tokens stand in a number, whose zero is
// not encoded, and not in a map, where absent means not said.
func (m *Method) zeroIsAbsent(v *values) bool {
	f := &m.response
	for ref := f.from[slotUsagePrompt]; ref < f.to[slotUsagePrompt]; ref++ {
		if v.set&(1<<ref) != 0 && !v.val[ref].number {
			return false
		}
	}
	return f.slots&slotUsageCached.bit() != 0
}

// raise sets u to n if n is more.
func raise(u *int, n int, ok bool) bool {
	if ok {
		*u = max(*u, n)
	}
	return ok
}
