// Command configdoc writes docs/server-config.md, the reference page of every field of the look-aside server's config. What
// it says comes from the Go structs that are read: their comments, their names in JSON, their types and defaults, so that
// it cannot say anything else than the program. `go generate ./server` runs it; a test compares the page.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := run("..", filepath.Join("..", "docs", "server-config.md")); err != nil {
		fmt.Fprintln(os.Stderr, "configdoc:", err)
		os.Exit(1)
	}
}

// run writes the page of the module in root.
func run(root, to string) error {
	page, err := write(root)
	if err != nil {
		return err
	}
	return os.WriteFile(to, page, 0o644)
}
