package fleetfile

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// quick is often enough for a test to end.
const quick = time.Millisecond

type update struct {
	replicas []policy.Attributes
	err      error
}

// follow watches a file until the end of the test.
func follow(t *testing.T, path string, every time.Duration) <-chan update {
	t.Helper()
	ch := make(chan update, 1000)
	t.Cleanup(watch(path, func(data []byte, err error) {
		var replicas []policy.Attributes
		if err == nil {
			replicas, err = ParseFile(path, data)
		}
		ch <- update{replicas, err}
	}, every))
	return ch
}

func next(t *testing.T, ch <-chan update) update {
	t.Helper()
	select {
	case got := <-ch:
		return got
	case <-time.After(30 * time.Second):
		require.Fail(t, "no update")
		return update{}
	}
}

// until waits for the fleet of one replica with this id; a file that is being written may be reported as broken in
// between.
func until(t *testing.T, ch <-chan update, id string) {
	t.Helper()
	for {
		if got := next(t, ch); got.err == nil && len(got.replicas) == 1 && got.replicas[0].ID == id {
			return
		}
	}
}

func text(id string) []byte {
	return fmt.Appendf(nil, "replicas: [{id: %s, address: 'a:1'}]\n", id)
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, data, 0o600))
}

func replace(t *testing.T, path string, data []byte) {
	t.Helper()
	write(t, path+".new", data)
	require.NoError(t, os.Rename(path+".new", path))
}

func relink(t *testing.T, target, link string) {
	t.Helper()
	require.NoError(t, os.Symlink(target, link+".new"))
	require.NoError(t, os.Rename(link+".new", link))
}

func TestWatch(t *testing.T) {
	for name, every := range map[string]time.Duration{"quick": quick, "usual": interval} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "fleet.yaml")
			write(t, path, text("v1"))
			ch := follow(t, path, every)
			require.Len(t, ch, 1, "reported before Watch returned")
			until(t, ch, "v1")

			write(t, path, text("v2"))
			until(t, ch, "v2")
			replace(t, path, text("v3"))
			until(t, ch, "v3")

			replace(t, path, []byte("replicas: [{}]"))
			got := next(t, ch)
			assert.EqualError(t, got.err, path+": replicas[0].address: missing; want host:port")
			assert.Nil(t, got.replicas)
			replace(t, path, text("v4"))
			until(t, ch, "v4")

			require.NoError(t, os.Remove(path))
			assert.ErrorIs(t, next(t, ch).err, os.ErrNotExist)
			replace(t, path, text("v4"))
			until(t, ch, "v4")
			assert.Empty(t, ch)
		})
	}
}

// Kubernetes mounts a ConfigMap as fleet.yaml -> ..data/fleet.yaml with ..data ->
// ..v1, and swaps ..data.
func TestWatchConfigMap(t *testing.T) {
	for name, every := range map[string]time.Duration{"quick": quick, "usual": interval} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, v := range []string{"v1", "v2", "v3"} {
				require.NoError(t, os.Mkdir(filepath.Join(dir, ".."+v), 0o700))
				write(t, filepath.Join(dir, ".."+v, "fleet.yaml"), text(v))
			}
			relink(t, "..v1", filepath.Join(dir, "..data"))
			relink(t, "..data/fleet.yaml", filepath.Join(dir, "fleet.yaml"))
			ch := follow(t, filepath.Join(dir, "fleet.yaml"), every)
			until(t, ch, "v1")
			for _, v := range []string{"v2", "v3"} {
				relink(t, ".."+v, filepath.Join(dir, "..data"))
				until(t, ch, v)
			}
		})
	}
}

func TestWatchLinks(t *testing.T) {
	root := t.TempDir()
	for _, v := range []string{"v1", "v2"} {
		require.NoError(t, os.Mkdir(filepath.Join(root, v), 0o700))
		write(t, filepath.Join(root, v, "fleet.yaml"), text(v))
	}
	// A link among the directories.
	relink(t, "v1", filepath.Join(root, "current"))
	dirs := follow(t, filepath.Join(root, "current", "fleet.yaml"), quick)
	until(t, dirs, "v1")
	relink(t, "v2", filepath.Join(root, "current"))
	until(t, dirs, "v2")
	write(t, filepath.Join(root, "v2", "fleet.yaml"), text("v2b"))
	until(t, dirs, "v2b")

	// A file in another directory than its link.
	require.NoError(t, os.Mkdir(filepath.Join(root, "links"), 0o700))
	link := filepath.Join(root, "links", "f.yaml")
	relink(t, filepath.Join(root, "v1", "fleet.yaml"), link)
	file := follow(t, link, quick)
	until(t, file, "v1")
	replace(t, filepath.Join(root, "v1", "fleet.yaml"), text("v1b"))
	until(t, file, "v1b")
}

func TestWatchDirectoryRecreated(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "a", "b", "fleet.yaml")
	ch := follow(t, path, quick)
	require.ErrorIs(t, next(t, ch).err, os.ErrNotExist)
	for _, v := range []string{"v1", "v2"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		write(t, path, text(v))
		until(t, ch, v)
		require.NoError(t, os.RemoveAll(filepath.Join(root, "a")))
		for next(t, ch).err == nil {
		}
	}
}

func TestWatchReportsOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	write(t, path, []byte("replicas: ["))
	ch := follow(t, path, quick)
	require.Error(t, next(t, ch).err)
	// The same broken text several times, then another one that marks the end.
	for range 20 {
		replace(t, path, []byte("replicas: ["))
	}
	replace(t, path, text("end"))
	until(t, ch, "end")
	assert.Empty(t, ch)
}

// A file of the same size and modification time may have another content.
func TestWatchSameSizeAndTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	at := time.Now()
	old := at.Add(-time.Hour)
	put := func(s string) {
		write(t, path, []byte(s))
		require.NoError(t, os.Chtimes(path, old, old))
	}
	put("one")
	var got []string
	w := &watcher{path: path, on: func(data []byte, err error) {
		require.NoError(t, err)
		got = append(got, string(data))
	}}
	w.seen, _ = os.Stat(path)
	w.read(at)
	put("two")
	w.look(at.Add(reread - 1))
	require.Equal(t, []string{"one"}, got)
	w.look(at.Add(reread))
	w.look(at.Add(2 * reread))
	require.Equal(t, []string{"one", "two"}, got)
}

func TestWatchRelativePath(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	write(t, "fleet.yaml", text("v1"))
	ch := follow(t, "fleet.yaml", quick)
	until(t, ch, "v1")
	t.Chdir(t.TempDir())
	write(t, filepath.Join(dir, "fleet.yaml"), text("v2"))
	until(t, ch, "v2")
}

// A reader sees whole fleets only, in the order in which they were written, and
// in the end the last.
func TestWatchManyChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	replace(t, path, text("r0000"))
	ch := follow(t, path, quick)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 1; i <= 300; i++ {
			replace(t, path, fmt.Appendf(nil, "replicas: [{id: r%04d, address: 'a:1'}]\n", i))
		}
	})
	last := ""
	for last != "r0300" {
		got := next(t, ch)
		require.NoError(t, got.err)
		require.Greater(t, got.replicas[0].ID, last)
		last = got.replicas[0].ID
	}
	wg.Wait()
}

func TestWatchStop(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	write(t, path, text("v1"))
	calls := make(chan struct{}, 10)
	enter, leave := make(chan struct{}), make(chan struct{})
	var after bool
	stop := watch(path, func([]byte, error) {
		calls <- struct{}{}
		if len(calls) == 2 {
			close(enter)
			<-leave
			after = true
		}
	}, quick)
	write(t, path, text("v2"))
	<-enter
	closed := make(chan struct{})
	go func() {
		stop()
		close(closed)
	}()
	select {
	case <-closed:
		assert.Fail(t, "stop did not wait")
	default:
	}
	close(leave)
	<-closed
	assert.True(t, after)
	stop() // twice
}

// A stop during changes leaks nothing, and no update follows it.
func TestWatchStopRace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	write(t, path, text("v0"))
	for i := range 50 {
		var mu sync.Mutex
		over := false
		stop := watch(path, func([]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			assert.False(t, over)
		}, quick)
		write(t, path, text(fmt.Sprintf("v%d", i)))
		stop()
		mu.Lock()
		over = true
		mu.Unlock()
	}
}
