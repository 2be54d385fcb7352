package requestkey

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/balancer/dialect"
)

// maxDepth bounds the steps of a path.
const maxDepth = 8

type step struct {
	num  int32  // 0 where the step is a name
	name string // "" where the step is a number
	list bool
	key  string // of a map; "" = the field is no map
}

// parsePath returns the alternatives of a path.
func parsePath(p dialect.Path) ([][]step, error) {
	if p == "" {
		return nil, nil
	}
	var alts [][]step
	for rest := string(p); ; {
		steps, n, err := parseSteps(rest)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", string(p), err)
		}
		alts = append(alts, steps)
		if n == len(rest) {
			return alts, nil
		}
		rest = rest[n+1:]
	}
}

// parseSteps reads one alternative and returns where it ends: at a | or the end.
func parseSteps(s string) (steps []step, end int, err error) {
	for i := 0; ; i++ {
		n := strings.IndexAny(s[i:], ".[|")
		if n < 0 {
			n = len(s) - i
		}
		st, err := parseStep(s[i : i+n])
		if err != nil {
			return nil, 0, err
		}
		i += n
		if i < len(s) && s[i] == '[' {
			n := strings.IndexByte(s[i:], ']')
			if n < 0 {
				return nil, 0, fmt.Errorf("missing ] after step %d", len(steps)+1)
			}
			st.key = s[i+1 : i+n]
			st.list = st.key == ""
			i += n + 1
		}
		if steps = append(steps, st); len(steps) > maxDepth {
			return nil, 0, fmt.Errorf("more than %d steps", maxDepth)
		}
		switch {
		case i == len(s) || s[i] == '|':
			return steps, i, nil
		case s[i] != '.':
			return nil, 0, fmt.Errorf("unexpected %q after step %d", s[i], len(steps))
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
		return step{num: int32(n)}, nil
	}
	for _, c := range []byte(s) {
		if c != '_' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			return step{}, fmt.Errorf("%q is neither a field number nor a field name", s)
		}
	}
	return step{name: s}, nil
}
