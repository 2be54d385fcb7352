package dialect

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// A Path leads to a field of a message: steps separated by dots, each a field
// number or a field name. Names work on typed messages only.
//
//	4.1             field 1 of the message in field 4
//	3[].2           field 2 of every message in the repeated field 3
//	2[cached]       the value under the key "cached" of the map in field 2
//	3|2.1           field 3, or 2.1 where that is absent
type Path string

// maxDepth bounds the steps of a path.
const maxDepth = 8

type step struct {
	num  int32  // 0 where the step is a name
	name string // "" where the step is a number
	list bool
	key  string // of a map; "" = the field is no map
}

// parse returns the alternatives of the path.
func (p Path) parse() ([][]step, error) {
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

// UnmarshalJSON reads a string, or a whole number for a path of one step. It
// refuses other numbers: YAML would read 4.10 as 4.1.
func (p *Path) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err == nil {
		*p = Path(s)
		return nil
	}
	if _, err := strconv.ParseUint(string(b), 10, 32); err == nil {
		*p = Path(b)
		return nil
	}
	return fmt.Errorf(`want a path in quotes, such as "4.1", not %.20s`, b)
}
