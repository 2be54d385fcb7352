package strict

import (
	"testing"

	"github.com/stretchr/testify/require"
)

type inner struct {
	N int `json:"n"`
}

type config struct {
	Name  string           `json:"name"`
	One   inner            `json:"one"`
	Many  []inner          `json:"many"`
	Named map[string]inner `json:"named"`
	Ptr   *inner           `json:"ptr"`
	Own   own              `json:"own"`
	Bare  int
	inner
	*Far
}

type Far struct {
	Name string `json:"name"` // hidden
	Away bool   `json:"away"`
}

// own reads itself.
type own struct{ config *config }

func (o *own) UnmarshalJSON(raw []byte) error {
	o.config = new(config)
	return Decode(raw, o.config)
}

func TestDecode(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", ""},
		{"null", ""},
		{`{"name":"a","one":{"n":1},"many":[{"n":1},{"n":2}],"named":{"x":{"n":1}},"ptr":{"n":1},"own":{"name":"b"},"Bare":1,"n":1,"away":true}`, ""},
		{`{"one":null,"many":null,"own":null}`, ""},
		{`[]`, "the config is a list, not an object"},
		{`{"nam":"a"}`, `unknown field "nam"`},
		{`{"Name":"a"}`, `unknown field "Name"`},
		{`{"inner":{}}`, `unknown field "inner"`},
		{`{"one":{"m":1}}`, `one: unknown field "m"`},
		{`{"many":[{"n":1},{"m":1}]}`, `many[1]: unknown field "m"`},
		{`{"named":{"x":{"m":1}}}`, `named.x: unknown field "m"`},
		{`{"named":{"x":{},"x":{}}}`, "named.x: it is there twice"},
		{`{"ptr":{"n":1,"n":1}}`, "ptr.n: it is there twice"},
		{`{"own":{"nam":"a"}}`, `own: unknown field "nam"`},
		{`{"name":"a","name":"a"}`, "name: it is there twice"},
		{`{"one":[]}`, "one: it is a list, not an object"},
		{`{"one":{"n":1.5}}`, "one.n: it is a number 1.5, not a whole number within its bounds"},
		{`{"away":1}`, "away: it is a number, not true or false"},
		{`{"n":"x"}`, "n: it is a string, not a whole number within its bounds"},
		{`{"name":}`, "it is not JSON: at byte 9: invalid character '}' looking for beginning of value"},
		{`{"name":"a"`, "it is not JSON: at byte 11: unexpected end of JSON input"},
		{`{} {}`, "it is not JSON: at byte 4: invalid character '{' after top-level value"},
	} {
		var c config
		err := Decode([]byte(tt.text), &c)
		if tt.want == "" {
			require.NoError(t, err, tt.text)
		} else {
			require.EqualError(t, err, tt.want, tt.text)
		}
	}
	require.Error(t, Decode([]byte("{}"), config{}), "not a pointer")
}
