package requestkey_test

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
)

// A user's own service needs a few lines.
func Example() {
	table, err := requestkey.NewTable(dialect.Dialect{
		Methods: []string{"/my.Service/Generate"},
		Tokens:  "4.1",
		Session: "13",
		Usage:   dialect.Usage{Output: "2"},
	})
	if err != nil {
		panic(err)
	}
	ids := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), []byte{7, 8, 9})
	request := protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), ids)
	request = protowire.AppendString(protowire.AppendTag(request, 13, protowire.BytesType), "user_42")

	var q policy.Request
	table.Lookup("/my.Service/Generate").Request(&q, policy.UsesPrompt|policy.UsesSession, request)
	fmt.Println(q.Session, q.Prompt.Tokens, q.PromptTokens)
	// Output: user_42 [7 8 9] 3
}
