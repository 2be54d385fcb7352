package dialect

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// A Path leads to a field of a message: steps separated by dots, each a field
// number or a field name. Names work on typed messages only.
//
//	4.1             field 1 of the message in field 4
//	3[].2           field 2 of every message in the repeated field 3
//	2[cached]       the value under the key "cached" of the map in field 2
//	3|2.1           field 3, or 2.1 where that is absent
//	tensor[text]    the input tensor "text" of a KServe v2 request
type Path string

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
