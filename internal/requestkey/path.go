package requestkey

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/balancer/dialect"
)

// maxDepth bounds the steps of a path.
const maxDepth = 8

// A step leads from a message to one of its fields.
type step struct {
	num  protowire.Number // 0 where the step is a name
	name string           // "" where the step is a number
	list bool
	key  string // of a map or a tensor; "" = the field is neither
}

// A path is one alternative: the steps from a message to a value.
type path []step

func (p path) hasList() bool { return slices.ContainsFunc(p, func(st step) bool { return st.list }) }

// tensor reports whether the path leads to an input tensor, whose name is the key.
func (p path) tensor() bool { return len(p) == 1 && p[0].name == "tensor" && p[0].key != "" }

// parsePath returns the alternatives of a path, the best first.
func parsePath(p dialect.Path) (alts []path, err error) {
	if p == "" {
		return nil, nil
	}
	for rest, more := string(p), true; more; {
		var steps path
		if steps, rest, err = parseSteps(rest); err != nil {
			return nil, fmt.Errorf("%q: %w", string(p), err)
		}
		alts = append(alts, steps)
		rest, more = strings.CutPrefix(rest, "|")
	}
	return alts, nil
}

// parseSteps reads one alternative and returns what follows it: nothing, or a | and more.
func parseSteps(s string) (steps path, rest string, err error) {
	for rest = s; ; rest = rest[1:] {
		end := len(rest)
		if n := strings.IndexAny(rest, ".[|"); n >= 0 {
			end = n
		}
		st, err := parseStep(rest[:end])
		if err != nil {
			return nil, "", err
		}
		if rest = rest[end:]; strings.HasPrefix(rest, "[") {
			var ok bool
			if st.key, rest, ok = strings.Cut(rest[1:], "]"); !ok {
				return nil, "", fmt.Errorf("missing ] after step %d", len(steps)+1)
			}
			st.list = st.key == ""
		}
		if steps = append(steps, st); len(steps) > maxDepth {
			return nil, "", fmt.Errorf("more than %d steps", maxDepth)
		}
		switch {
		case rest == "" || rest[0] == '|':
			return steps, rest, nil
		case rest[0] != '.':
			return nil, "", fmt.Errorf("unexpected %q after step %d", rest[0], len(steps))
		}
	}
}

func parseStep(s string) (step, error) {
	if s == "" {
		return step{}, fmt.Errorf("empty step")
	}
	if s[0] >= '0' && s[0] <= '9' {
		n, err := strconv.ParseInt(s, 10, 32)
		if err != nil || !protowire.Number(n).IsValid() {
			return step{}, fmt.Errorf("%q is no field number", s)
		}
		return step{num: protowire.Number(n)}, nil
	}
	for _, c := range []byte(s) {
		if c != '_' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			return step{}, fmt.Errorf("%q is neither a field number nor a field name", s)
		}
	}
	return step{name: s}, nil
}
