package policy

import (
	"unsafe"

	"github.com/warmpath/warmpath/internal/router/state"
)

func init() {
	state.Access.Request = unsafe.Offsetof(Request{}.state)
	state.Access.Replica = unsafe.Offsetof(Replica{}.state)
	state.Access.Decision = unsafe.Offsetof(Decision{}.state)
	state.Access.NewReplica = func(a Attributes, index int, host any, s *state.Replica) *Replica {
		return &Replica{state: s, index: index, Attributes: a, host: host}
	}
}
