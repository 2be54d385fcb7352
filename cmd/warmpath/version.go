package main

import (
	"cmp"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

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
