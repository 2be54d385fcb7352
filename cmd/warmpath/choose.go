package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/encoding/protojson"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

func newChoose() *cobra.Command {
	var (
		server, prompt string
		timeout        time.Duration
		json           bool
		dial           dialFlags
		key            warmpathv1.RequestKey
		ask            = warmpathv1.ChooseReplicaRequest{Key: &key, Mode: warmpathv1.PickMode_PICK_MODE_QUERY}
	)
	c := &cobra.Command{
		Use:   "choose --server ADDR",
		Short: "Ask a look-aside server which replica a request would go to, and why",
		RunE: func(c *cobra.Command, _ []string) error {
			if prompt != "" {
				key.Prompt = &warmpathv1.RequestKey_Text{Text: prompt}
			}
			if err := first(required(c, "server"), positive("timeout", timeout.Seconds())); err != nil {
				return err
			}
			conn, err := dial.dial(server)
			if err != nil {
				return err
			}
			defer conn.Close()
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			var to peer.Peer
			a, err := warmpathv1.NewRoutingServiceClient(conn).ChooseReplica(ctx, &ask, grpc.Peer(&to))
			if err != nil {
				return refusal(server, &to, err)
			}
			return printChoice(c.OutOrStdout(), a, json)
		},
	}
	f := c.Flags()
	f.StringVar(&server, "server", "", "the server's `address`, host:port")
	dial.add(f)
	f.DurationVar(&timeout, "timeout", 5*time.Second, "how long the answer may take")
	f.StringVar(&ask.Deployment, "deployment", "", "`name` of the deployment; default: by the model, or the only one")
	f.StringVar(&key.Session, "session", "", "`id` of the session")
	f.StringVar(&key.RequestId, "request-id", "", "`id` of the request")
	f.StringVar(&prompt, "prompt", "", "the prompt's `text`")
	f.StringVar(&key.Model, "model", "", "`name` of the model, or base:adapter")
	f.StringVar(&key.Adapter, "adapter", "", "`name` of the LoRA adapter")
	f.StringVar(&key.CacheSalt, "cache-salt", "", "`salt` of the prefix cache")
	f.StringSliceVar(&ask.Excluded, "exclude", nil, "`ids` of replicas that must not be picked")
	f.BoolVar(&json, "json", false, "print the answer as one JSON object")
	return c
}

// reasonWithheld stands in an answer to a principal that is not trusted: what is cached, and the load, are 0 there and
// not known.
const reasonWithheld = "withheld"

func printChoice(w io.Writer, a *warmpathv1.ChooseReplicaResponse, json bool) error {
	if json {
		raw, err := protojson.MarshalOptions{Multiline: true, Indent: "  ", UseProtoNames: true,
			EmitUnpopulated: true}.Marshal(a)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "%s\n", raw)
		return err
	}
	r, d := a.GetReplica(), a.GetDecision()
	others := make([]string, len(a.GetFallbacks()))
	for i, f := range a.GetFallbacks() {
		others[i] = f.GetId()
	}
	cached, load := fmt.Sprintf("%d of %s", d.GetMatchedTokens(), counted(d.GetPromptTokens(), "prompt token")),
		fmt.Sprintf("%.0f tokens", d.GetLoad())
	if d.GetReason() == reasonWithheld {
		cached, load = reasonWithheld, reasonWithheld
	}
	_, err := fmt.Fprintf(w, "deployment  %s\nreplica     %s at %s\nfallbacks   %s\npolicy      %s\nreason      "+
		"%s\ncached      %s\nload        %s\n",
		a.GetDeployment(), r.GetId(), r.GetAddress(), cmp.Or(strings.Join(others, ", "), "none"), d.GetPolicy(),
		d.GetReason(), cached, load)
	return err
}
