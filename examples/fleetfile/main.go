// Command fleetfile takes its replicas from a file with their zones, weights and LoRA
// adapters, and follows its changes.
//
//	go run ./examples/fleetfile examples/fleetfile/fleet.yaml z1
//
// Calls for an adapter go to the replicas that have it loaded; other calls stay
// in this process's zone; a replica of weight 2 bears twice the load. Connections
// of replicas that stay are kept when the file changes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/client"
	pb "github.com/warmpath/warmpath/examples/stubs/sglang/grpc/scheduler"
	_ "github.com/warmpath/warmpath/resolver/file"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: fleetfile FILE ZONE")
	}
	conn, err := dial(os.Args[1], os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	for _, adapter := range []string{"french", "german", ""} {
		replica, err := ask(context.Background(), conn, adapter)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("adapter %q: %s\n", adapter, replica)
	}
}

// dial returns a channel to the fleet in the file, for a client in a zone.
func dial(file, zone string) (*grpc.ClientConn, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	return client.New("warmpath-file://"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		client.WithConfig(fmt.Sprintf(`{"zone": %q}`, zone)),
	)
}

// ask makes a call for an adapter and returns the id of the replica that served it.
func ask(ctx context.Context, conn *grpc.ClientConn, adapter string) (string, error) {
	var d client.Decision
	stream, err := pb.NewSglangSchedulerClient(conn).Generate(client.WithDecision(ctx, &d), &pb.GenerateRequest{
		Tokenized: &pb.TokenizedInput{InputIds: []uint32{1, 2, 3}},
		LoraId:    adapter,
	})
	for err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) {
		return "", err
	}
	return d.Replica, nil
}
