// Command customdialect routes the calls of a service that warmpath does not know, by a
// dialect of a few lines: which fields of the request are the conversation, the
// session and the tenant, and which of the response count tokens.
//
//	go run ./examples/customdialect warmpath:///127.0.0.1:50051,127.0.0.1:50052
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/client"
	pb "github.com/warmpath/warmpath/examples/stubs/acme/chat/v1"
)

// config names fields of acme.chat.v1 by number, which works on every shape of a
// message. Names ("turns") do too, where messages are typed.
const config = `{
	"dialects": [{
		"methods":    ["/acme.chat.v1.ChatService/Answer"],
		"messages":   {"path": "2", "role": "1", "content": "2"},
		"session":    "1",
		"cache_salt": "3",
		"usage":      {"prompt": "2.1", "cached": "2.2"}
	}]
}`

func main() {
	target := "warmpath:///127.0.0.1:50051,127.0.0.1:50052"
	if len(os.Args) > 1 {
		target = os.Args[1]
	}
	if err := run(context.Background(), os.Stdout, target); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, target string) error {
	conn, err := client.New(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		client.WithConfig(config),
	)
	if err != nil {
		return err
	}
	defer conn.Close()
	stub := pb.NewChatServiceClient(conn)

	chat := &pb.AnswerRequest{Conversation: "c1", Tenant: "acme"}
	for _, question := range []string{"Why is the sky blue?", "And at dusk?", "And on Mars?"} {
		chat.Turns = append(chat.Turns, &pb.Turn{Speaker: "user", Words: strings.Repeat(question+" ", 20)})
		var d client.Decision
		stream, err := stub.Answer(client.WithDecision(ctx, &d), chat)
		for err == nil {
			var answer *pb.AnswerResponse
			if answer, err = stream.Recv(); err == nil {
				chat.Turns = append(chat.Turns, &pb.Turn{Speaker: "assistant", Words: answer.GetWords()})
			}
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
		fmt.Fprintf(out, "%s %s cached %d of %d\n", d.Replica, d.Reason, d.Usage.CachedTokens, d.Usage.PromptTokens)
	}
	return nil
}
