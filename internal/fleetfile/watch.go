package fleetfile

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
)

// interval is how often a file is looked at. A change is reported within two of them.
const interval = 250 * time.Millisecond

// A Watcher follows a fleet file, or one of another kind.
type Watcher struct {
	path string // absolute
	on   func([]byte, error)

	// Used by watch before the goroutine starts, then by the goroutine alone.
	seen    os.FileInfo // at the last look; nil = the file was not there
	changed bool        // the file had changed then
	last    string      // what was reported last: the content, or an error
	failed  bool        // the file could not be read then
	checked time.Time   // when it was read last

	stop sync.Once
	quit chan struct{}
	done chan struct{}
}

// Watch reads a fleet file and follows it until Close. on is called with the
// first result before Watch returns, then after every change of the content from
// one goroutine, never twice at a time: with the fleet, or with the error if the
// file is broken or gone, in which case the fleet before it stays in force.
// One broken content is reported once. on must not call Close.
//
// Writing in place, renaming over the file, swapping a symbolic link on the way
// to it (as Kubernetes does with a ConfigMap) and recreating the directory all
// count as changes, on every file system. They are seen within half a second; one
// that leaves size and modification time as they were, within 31 seconds. A
// relative path holds for the working directory at the time of the call.
func Watch(path string, on func([]policy.Attributes, error)) *Watcher {
	return watch(path, parsing(path, on), interval)
}

// WatchFile is Watch for a file of another kind: on is given its content.
func WatchFile(path string, on func([]byte, error)) *Watcher { return watch(path, on, interval) }

// parsing is on for the content of a fleet file.
func parsing(path string, on func([]policy.Attributes, error)) func([]byte, error) {
	return func(data []byte, err error) {
		if err != nil {
			on(nil, err)
			return
		}
		on(parseFile(path, data))
	}
}

func watch(path string, on func([]byte, error), every time.Duration) *Watcher {
	w := &Watcher{path: path, on: on, quit: make(chan struct{}), done: make(chan struct{})}
	if abs, err := filepath.Abs(path); err == nil {
		w.path = abs
	}
	w.seen, _ = os.Stat(w.path)
	w.read(time.Now())
	go w.run(every)
	return w
}

// Close ends the watch and waits for a call of on that is under way.
func (w *Watcher) Close() error {
	w.stop.Do(func() { close(w.quit) })
	<-w.done
	return nil
}

func (w *Watcher) run(every time.Duration) {
	defer close(w.done)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-w.quit:
			return
		case now := <-tick.C:
			w.look(now)
		}
	}
}

// coarse is longer than the steps in which file systems keep times: within it a file may change without a trace.
const coarse = 2 * time.Second

// reread is how often a file is read at least: a change may leave its size and modification time as they were.
const reread = 30 * time.Second

// look reads the file if it has changed, one look later: a file written in place is empty or cut for an instant.
func (w *Watcher) look(at time.Time) {
	now, _ := os.Stat(w.path)
	changed := (now == nil) != (w.seen == nil) || now != nil &&
		!(os.SameFile(now, w.seen) && now.Size() == w.seen.Size() && now.ModTime().Equal(w.seen.ModTime()))
	if w.changed || !changed && (w.failed || now == nil || at.Sub(now.ModTime()) < coarse || at.Sub(w.checked) >= reread) {
		w.read(at)
	}
	w.seen, w.changed = now, changed
}

// read reports the content where it is new.
func (w *Watcher) read(at time.Time) {
	w.checked = at
	data, err := read(w.path)
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
