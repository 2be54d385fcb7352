package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/warmpath/warmpath/internal/pause"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A watcher of a server's state: what the command top is asked to do.
type top struct {
	server            string
	ask               warmpathv1.GetStatusRequest
	interval, timeout time.Duration
	once, json        bool
	dial              dialFlags
}

func newTop() *cobra.Command {
	var t top
	c := &cobra.Command{
		Use:   "top --server ADDR",
		Short: "Show the replicas of a look-aside server, their load and caches, and its decisions, live",
		Long: "top reads the status of a look-aside server again and again, and shows replicas, load, cached tokens and\n" +
			"decisions by reason, with rates since the last reading. It ends on interrupt; with --once after the first table.",
		RunE: func(c *cobra.Command, _ []string) error {
			err := first(required(c, "server"), positive("interval", t.interval), positive("timeout", t.timeout))
			if err != nil {
				return err
			}
			conn, err := t.dial.dial(t.server)
			if err != nil {
				return err
			}
			defer conn.Close()
			return t.run(c.Context(), warmpathv1.NewStatusServiceClient(conn), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	f := c.Flags()
	f.StringVar(&t.server, "server", "", "the server's `address`, host:port")
	f.StringVar(&t.ask.Deployment, "deployment", "", "`name` of the deployment; default: all")
	t.dial.add(f)
	f.DurationVar(&t.interval, "interval", time.Second, "how often to look")
	f.DurationVar(&t.timeout, "timeout", 5*time.Second, "how long an answer may take")
	f.BoolVar(&t.once, "once", false, "print one table and end")
	f.BoolVar(&t.json, "json", false, "print JSON: one object on a line for each look")
	return c
}

// run looks until the context ends, or once. Beside JSON, which is for programs, errors go to stderr.
func (t *top) run(ctx context.Context, client warmpathv1.StatusServiceClient, w, stderr io.Writer) error {
	var s *screen
	var before *warmpathv1.GetStatusResponse
	for range pause.Every(ctx, t.interval) {
		now, failed := t.look(ctx, client)
		switch {
		case before == nil && failed != nil:
			return failed
		case t.once:
			return t.print(w, now, nil)
		case s == nil:
			s = newScreen(w)
			defer s.close()
		}
		if err := s.show(func(w io.Writer) error {
			if failed == nil {
				return t.print(w, now, before)
			}
			if t.json {
				w = stderr
			}
			_, err := fmt.Fprintf(w, "%s; asking again every %v\n", printable(failed.Error()), t.interval)
			return err
		}); err != nil {
			return err
		}
		if failed == nil {
			before = now
		}
	}
	return nil
}

// look asks the server.
func (t *top) look(ctx context.Context, client warmpathv1.StatusServiceClient) (*warmpathv1.GetStatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	var to peer.Peer
	a, err := client.GetStatus(ctx, &t.ask, grpc.Peer(&to))
	if err != nil {
		return nil, refusal(t.server, &to, err)
	}
	return a, nil
}

func (t *top) print(w io.Writer, now, before *warmpathv1.GetStatusResponse) error {
	if !t.json {
		return printStatus(w, now, before)
	}
	raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(now)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", raw)
	return err
}

// A screen shows one thing in the place of the one before, on a terminal; elsewhere one after the other.
type screen struct {
	w    io.Writer
	term *os.File // nil where w is none
}

// Control sequences, as every terminal has had them for thirty years.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearRest   = "\x1b[J"
)

func newScreen(w io.Writer) *screen {
	s := &screen{w: w}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		s.term = f
		_, _ = io.WriteString(w, enterScreen)
	}
	return s
}

func (s *screen) close() {
	if s.term != nil {
		_, _ = io.WriteString(s.w, leaveScreen)
	}
}

func (s *screen) show(print func(io.Writer) error) error {
	if s.term == nil {
		return print(s.w)
	}
	width, height, err := term.GetSize(int(s.term.Fd()))
	if err != nil {
		width, height = 80, 24
	}
	var text strings.Builder
	if err := print(&text); err != nil {
		return err
	}
	_, err = io.WriteString(s.w, inPlace(text.String(), width, height))
	return err
}
