package real

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// launcher is the process engines/launcher.py. It starts engines, and ends them when this process is gone.
type launcher struct {
	mu      sync.Mutex // guards what follows; held while an order waits for its answer
	cmd     *exec.Cmd  // nil = not started
	orders  io.WriteCloser
	started chan started
	errors  strings.Builder // the process's standard error; read after started is closed
}

// order says what to start.
type order struct {
	Log     string            `json:"log"`
	Env     map[string]string `json:"env"`
	Program string            `json:"program,omitempty"`
	Args    []string          `json:"args"`
}

// started is a process; ended is closed when it has ended.
type started struct {
	pid   int
	ended chan struct{}
}

// theLauncher is started with the first engine.
var theLauncher launcher

// open starts the launcher's process. Called with mu held.
func (l *launcher) open() error {
	env, err := found()
	if err != nil {
		return err
	}
	cmd := exec.Command(env.program("python"), "engines/launcher.py")
	cmd.Env = append(os.Environ(),
		"PATH="+filepath.Dir(env.program("python"))+string(os.PathListSeparator)+os.Getenv("PATH"),
		"VLLM_CACHE_ROOT="+filepath.Join(env.dir, "vllm"), "VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind",
		"OMP_NUM_THREADS=1", "CUDA_VISIBLE_DEVICES=", "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "PYTHONHASHSEED=0",
		"VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1", "UCX_TLS=tcp,shm,self", "UCX_NET_DEVICES=lo",
	)
	cmd.Stderr = &l.errors
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // ^C ends the tests, and their end the engines
	orders, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	l.cmd, l.orders, l.started = cmd, orders, make(chan started, 1)
	go l.read(out)
	return nil
}

// read takes the launcher's answers until it ends.
func (l *launcher) read(out io.Reader) {
	running := make(map[int]chan struct{})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var answer struct{ Started, Ended int }
		if err := json.Unmarshal(lines.Bytes(), &answer); err != nil {
			break
		}
		if answer.Started != 0 {
			running[answer.Started] = make(chan struct{})
			l.started <- started{answer.Started, running[answer.Started]}
		} else if ended, ok := running[answer.Ended]; ok { // else it is a child that an engine has left
			close(ended)
			delete(running, answer.Ended)
		}
	}
	_ = l.cmd.Wait()
	close(l.started)
	for _, ended := range running {
		close(ended)
	}
}

// start carries out an order.
func (l *launcher) start(o order) (started, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cmd == nil {
		if err := l.open(); err != nil {
			return started{}, err
		}
	}
	line, err := json.Marshal(o)
	if err != nil {
		return started{}, err
	}
	_, _ = l.orders.Write(append(line, '\n')) // an error shows below
	s, ok := <-l.started
	if !ok {
		return started{}, fmt.Errorf("the launcher has ended:\n%s", l.errors.String())
	}
	return s, nil
}

// close ends the launcher and what it started.
func (l *launcher) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cmd == nil {
		return
	}
	_ = l.orders.Close()
	for range l.started { // until it has ended
	}
}
