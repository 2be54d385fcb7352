package policy

import "fmt"

// A Priority is a request's level in the queue. A level is a head start: a request
// stands in the queue as if it had come ten seconds earlier for each level, so it is
// served before those of the level below that came up to that long before it, and
// no request waits for ever behind those of a higher level.
type Priority int8

// The levels.
const (
	PriorityLow    Priority = -1
	PriorityNormal Priority = 0
	PriorityHigh   Priority = 1
)

// ParsePriority reads "low", "normal" or "high".
func ParsePriority(s string) (Priority, error) {
	switch s {
	case "low":
		return PriorityLow, nil
	case "normal":
		return PriorityNormal, nil
	case "high":
		return PriorityHigh, nil
	}
	return PriorityNormal, fmt.Errorf("priority %q is not low, normal or high", s)
}

// String returns what ParsePriority reads.
func (p Priority) String() string {
	switch min(max(p, PriorityLow), PriorityHigh) {
	case PriorityLow:
		return "low"
	case PriorityHigh:
		return "high"
	}
	return "normal"
}
