package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/warmpath/warmpath/server/export"
)

// exporting is what gets a server's metrics out while it serves.
type exporting struct {
	*export.Exporter
	log *slog.Logger
}

// startMetrics begins to export, and says where the page is.
func startMetrics(ctx context.Context, listen string, out serveOutput) (exporting, error) {
	x, err := export.Start(ctx, listen, nil)
	if err != nil {
		return exporting{}, err
	}
	if x.Addr() != nil {
		out.say(fmt.Sprintf("metrics on http://%s%s", x.Addr(), export.Path))
	}
	return exporting{x, out.log}, nil
}

// end sends what is left.
func (x exporting) end() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := x.Shutdown(ctx); err != nil {
		x.log.Warn("warmpath: the last metrics were not sent", "error", err)
	}
}
