// Command warmpath shows what package client does: it runs simulated engines, puts load on them or on real
// ones through warmpath's channels, and explains decisions.
//
// It exits with 0 when all went well, 1 when something failed while it ran, 2 when it was called wrongly, 3 when what
// it measured is not valid, and 130 when it was interrupted. One line on standard error names what is wrong.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	_ "golang.org/x/crypto/x509roots/fallback" // for the image, which has no certificates
	"google.golang.org/grpc/grpclog"

	_ "github.com/warmpath/warmpath/resolver/file"
	_ "github.com/warmpath/warmpath/resolver/kubernetes"
	_ "github.com/warmpath/warmpath/server/nats"
)

// Exit codes.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInvalid     = 3
	exitInterrupted = 130
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	logToDefault()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the command.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(append([]string{}, args...)) // nil stands for the arguments of the process
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	code := exitFailed
	switch wrong, invalid := (usageError{}), (invalidError{}); {
	case errors.As(err, &wrong):
		code = exitUsage
	case errors.As(err, &invalid):
		code = exitInvalid
	case ctx.Err() != nil:
		code, err = exitInterrupted, errors.New("interrupted")
	}
	text := strings.Join(strings.Fields(err.Error()), " ")
	if slices.Contains(args, "--"+logJSON) {
		slog.New(slog.NewJSONHandler(stderr, nil)).Error(cmd.CommandPath(), "error", text)
	} else {
		fmt.Fprintf(stderr, "%s: %s\n", cmd.CommandPath(), text)
	}
	return code
}

// logToDefault makes gRPC's errors lines of slog's default, unless the environment asks gRPC for more.
func logToDefault() {
	if os.Getenv("GRPC_GO_LOG_SEVERITY_LEVEL") == "" {
		grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, errorLines{}))
	}
}

// errorLines writes lines to slog's default.
type errorLines struct{}

func (errorLines) Write(line []byte) (int, error) {
	slog.Error(strings.TrimSpace(string(line)))
	return len(line), nil
}

// invalidError is why what was measured is not valid.
type invalidError struct{ why string }

func (e invalidError) Error() string { return "the run is not valid: " + e.why }

// usageError is a mistake in how the command was called.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "warmpath",
		Short:         "Route LLM requests inside the gRPC client to the replica whose KV cache is warm",
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	commands := []*cobra.Command{newDemo(), newReplay(), newExplain(), newEngine(), newVersion(), newSim(), newServe(),
		newChoose(), newTop(), newChaos(), newProxy()}
	names := make([]string, len(commands))
	for i, c := range commands {
		names[i] = c.Name()
		c.Args = noArgs
		root.AddCommand(c)
	}
	root.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usagef("there is no command %q; the commands are %s", args[0], strings.Join(names, ", "))
		}
		return nil
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
			return usagef("%w; the flags are %s", err, flagNames(c))
		}
		return usageError{err}
	})
	return root
}

func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%q is not expected; the flags are %s", args[0], flagNames(c))
	}
	return nil
}

func flagNames(c *cobra.Command) string {
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
	return strings.Join(names, ", ")
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), "warmpath", version())
			return err
		},
	}
}

// version is the module's, with the revision that it was built from where Go has it.
func version() string {
	info, _ := debug.ReadBuildInfo() // every program that is built with modules has it
	return cmp.Or(info.Main.Version, "(devel)") + " " + info.GoVersion
}
