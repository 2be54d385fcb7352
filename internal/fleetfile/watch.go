package fleetfile

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/warmpath/warmpath/internal/pause"
)

// interval is how often a file is looked at. A change is reported within two of them.
const interval = 250 * time.Millisecond

// A watcher follows a file. One goroutine at a time uses it.
type watcher struct {
	path string // absolute
	on   func([]byte, error)

	seen    os.FileInfo // at the last look; nil = the file was not there
	changed bool        // the file had changed then
	last    string      // what was reported last: the content, or an error
	failed  bool        // the file could not be read then
	checked time.Time   // when it was read last
}

// Watch reads a file and follows it until stop is called, which waits for a call of on that is under way. on is
// called with the first result before Watch returns, then after every change of the content from one goroutine, never
// twice at a time: with the content, or with the error if the file is gone. An error is reported once. on must not
// call stop.
//
// Writing in place, renaming over the file, swapping a symbolic link on the way to it (as Kubernetes does with a
// ConfigMap) and recreating the directory all count as changes, on every file system. They are seen within half a
// second; one that leaves size and modification time as they were, within 31 seconds. A relative path holds for the
// working directory at the time of the call.
func Watch(path string, on func([]byte, error)) (stop func()) { return watch(path, on, interval) }

func watch(path string, on func([]byte, error), every time.Duration) (stop func()) {
	w := &watcher{path: path, on: on}
	if abs, err := filepath.Abs(path); err == nil {
		w.path = abs
	}
	w.seen, _ = os.Stat(w.path)
	w.read(time.Now())
	return pause.Run(func(ctx context.Context) {
		for now := range pause.Every(ctx, every) {
			w.look(now)
		}
	})
}

// coarse is longer than the steps in which file systems keep times: within it a file may change without a trace.
const coarse = 2 * time.Second

// reread is how often a file is read at least: a change may leave its size and modification time as they were.
const reread = 30 * time.Second

// look reads the file if it has changed, one look later: a file written in place is empty or cut for an instant.
func (w *watcher) look(at time.Time) {
	now, _ := os.Stat(w.path)
	changed := (now == nil) != (w.seen == nil) || now != nil &&
		!(os.SameFile(now, w.seen) && now.Size() == w.seen.Size() && now.ModTime().Equal(w.seen.ModTime()))
	if w.changed || !changed && (w.failed || now == nil || at.Sub(now.ModTime()) < coarse || at.Sub(w.checked) >= reread) {
		w.read(at)
	}
	w.seen, w.changed = now, changed
}

// read reports the content where it is new.
func (w *watcher) read(at time.Time) {
	w.checked = at
	data, err := Read(w.path)
	now := "ok " + string(data)
	if err != nil {
		now = "error " + err.Error()
	}
	if now == w.last {
		return
	}
	w.last, w.failed = now, err != nil
	w.on(data, err)
}
