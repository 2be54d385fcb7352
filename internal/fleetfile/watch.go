package fleetfile

import (
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/warmpath/warmpath/balancer/policy"
)

// timing of a Watcher. After an event the file gets a moment to settle, since a
// file written in place is empty or cut for an instant. Events are not
// everywhere (NFS, FUSE) and not always (too many watches), hence the poll.
type timing struct {
	settle time.Duration
	poll   time.Duration
	events bool
}

var usual = timing{settle: 50 * time.Millisecond, poll: PollInterval, events: true}

// PollInterval is how often a [Watcher] looks at its file unasked.
const PollInterval = 30 * time.Second

// A Watcher follows a fleet file, or one of another kind.
type Watcher struct {
	path string // absolute
	on   func([]byte, error)
	timing

	fs       *fsnotify.Watcher // nil: the poll is all there is
	degraded error

	// Used by Watch before the goroutine starts, then by the goroutine alone.
	last string          // what was reported last: the content, or an error
	dirs map[string]bool // watched
	any  bool            // an event under any name may concern the file

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
// count as changes. They are seen by inotify and its like within about 50 ms; by
// a look every 30 seconds where there are no such events. A relative path holds
// for the working directory at the time of the call.
func Watch(path string, on func([]policy.Attributes, error)) *Watcher {
	return watch(path, on, usual)
}

// WatchFile is Watch for a file of another kind: on is given its content.
func WatchFile(path string, on func([]byte, error)) *Watcher {
	return watchFile(path, on, usual)
}

func watch(path string, on func([]policy.Attributes, error), t timing) *Watcher {
	return watchFile(path, func(data []byte, err error) {
		if err != nil {
			on(nil, err)
			return
		}
		on(parseFile(path, data))
	}, t)
}

func watchFile(path string, on func([]byte, error), t timing) *Watcher {
	w := &Watcher{
		path:   path,
		on:     on,
		timing: t,
		dirs:   make(map[string]bool),
		quit:   make(chan struct{}),
		done:   make(chan struct{}),
	}
	if abs, err := filepath.Abs(path); err == nil {
		w.path = abs
	}
	if t.events {
		w.fs, w.degraded = fsnotify.NewWatcher()
		if w.degraded != nil {
			w.fs = nil
		}
	}
	w.look()
	go w.run()
	return w
}

// Degraded returns why the file is only polled, nil if events tell of changes.
func (w *Watcher) Degraded() error { return w.degraded }

// Close ends the watch and waits for a call of on that is under way.
func (w *Watcher) Close() error {
	w.stop.Do(func() { close(w.quit) })
	<-w.done
	return nil
}

func (w *Watcher) run() {
	defer close(w.done)
	var events <-chan fsnotify.Event
	var errs <-chan error
	if w.fs != nil {
		defer w.fs.Close()
		events, errs = w.fs.Events, w.fs.Errors
	}
	poll := time.NewTicker(w.poll)
	defer poll.Stop()
	// The timer is not put off by further events, so that a directory where
	// something always happens cannot hide a change.
	var settle <-chan time.Time
	for {
		select {
		case <-w.quit:
			return
		case ev, ok := <-events:
			if !ok {
				events, errs = nil, nil // the poll goes on
			} else if settle == nil && (w.any || filepath.Base(ev.Name) == filepath.Base(w.path)) {
				settle = time.After(w.settle)
			}
		case <-errs: // some events were lost; should it be closed, so is events
			if settle == nil {
				settle = time.After(w.settle)
			}
		case <-settle:
			settle = nil
			w.look()
		case <-poll.C:
			w.look()
		}
	}
}

// look reads the file and reports what is new. The directories come first: what
// changes after the read then makes an event.
func (w *Watcher) look() {
	w.watchDirs()
	data, err := read(w.path)
	now := "ok " + string(data)
	if err != nil {
		now = "error " + err.Error()
	}
	if now == w.last {
		return
	}
	w.last = now
	w.on(data, err)
}

// watchDirs watches the directory of the file, of every symbolic link on the way
// to it, and of what it leads to: directories, because a watch on the file itself
// stays with the old one when a new one is renamed over it.
func (w *Watcher) watchDirs() {
	if w.fs == nil {
		return
	}
	want := make(map[string]bool)
	add := func(dir string) {
		// By its real name, lest the watch stay behind when a link is swapped; one
		// that is not there is awaited in the nearest that is.
		for {
			if real, err := filepath.EvalSymlinks(dir); err == nil {
				want[real] = true
				return
			}
			if dir == filepath.Dir(dir) {
				return
			}
			dir = filepath.Dir(dir)
		}
	}
	add(filepath.Dir(w.path))
	for p := w.path; p != filepath.Dir(p); p = filepath.Dir(p) {
		if info, err := os.Lstat(p); err == nil && info.Mode()&os.ModeSymlink != 0 {
			add(filepath.Dir(p))
		}
	}
	real, err := filepath.EvalSymlinks(w.path)
	if err == nil {
		add(filepath.Dir(real))
	}
	w.any = real != w.path

	for dir := range w.dirs {
		if !want[dir] {
			_ = w.fs.Remove(dir) // gone already, perhaps
		}
	}
	// Those already watched too: a directory may be a new one under an old name.
	maps.DeleteFunc(want, func(dir string, _ bool) bool { return w.fs.Add(dir) != nil })
	w.dirs = want
}
