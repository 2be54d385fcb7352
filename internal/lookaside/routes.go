package lookaside

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/routing"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// routes is where the channel sent prompts, while the server that is followed wants to know: engines that publish no KV events
// are known by what they are sent. Safe for use by many goroutines.
type routes struct {
	wanted atomic.Bool
	log    routing.RouteLog
}

// note is a [routing.RouteSink]; it is called for every call.
func (r *routes) note(to *routing.Replica, rank int, superblocks []uint64) {
	if r.wanted.Load() {
		r.log.Add(to, rank, superblocks)
	}
}

// want takes what the server says; what was not reported to another one is dropped.
func (r *routes) want(wanted bool) {
	if r.wanted.Swap(wanted) != wanted {
		r.log.Take()
	}
}

// report returns what is to be told of, nil for nothing. named are the replicas by the server's numbers.
func (r *routes) report(named map[uint32]Replica) *warmpathv1.RouteReport {
	all := r.log.Take()
	if len(all) == 0 {
		return nil
	}
	numbers := make(map[string]uint32, len(named))
	for n, rep := range named {
		numbers[rep.ID] = n
	}
	told := new(warmpathv1.RouteReport)
	for _, x := range all {
		if n, ok := numbers[x.Replica]; ok {
			told.Routes = append(told.Routes, &warmpathv1.Route{Replica: n, Rank: uint32(x.Rank), Superblocks: x.Superblocks})
		}
	}
	return told
}
