package endpoint

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// An Ongoing is what a caller that sends requests itself tells of them.
type Ongoing struct {
	// Caller tells callers of a principal apart.
	Caller string
	// Replicas has the counts by the id of the replica.
	Replicas map[string]Count
}

// A Count is of a caller's requests at a replica.
type Count struct {
	Now   uint64 // under way
	Begun uint64 // since the caller began
}

// Ended is how many have ended.
func (c Count) Ended() uint64 { return c.Begun - min(c.Now, c.Begun) }

// ParseOngoing reads "caller; r0=2/17, r1=0/9": the requests under way at each replica, and those begun there so far.
func ParseOngoing(text string) (*Ongoing, error) {
	caller, counts, found := strings.Cut(text, ";")
	o := &Ongoing{Caller: strings.TrimSpace(caller), Replicas: make(map[string]Count)}
	if !found || o.Caller == "" {
		return nil, fmt.Errorf("%q has no caller in front of a semicolon", text)
	}
	for part := range strings.SplitSeq(counts, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		id, count, _ := strings.Cut(part, "=")
		now, begun, _ := strings.Cut(count, "/")
		var c Count
		var err, errBegun error
		c.Now, err = strconv.ParseUint(now, 10, 63)
		if c.Begun, errBegun = strconv.ParseUint(begun, 10, 63); err != nil || errBegun != nil || id == "" {
			return nil, fmt.Errorf("%q is not replica=under way/begun", part)
		}
		o.Replicas[id] = c
	}
	return o, nil
}

// OngoingOf returns what the caller that asks for a pick tells of its requests; nil = nothing.
func OngoingOf(ctx context.Context) *Ongoing {
	if c, ok := ctx.Value(callKey{}).(*Call); ok {
		return c.Ongoing
	}
	return nil
}
