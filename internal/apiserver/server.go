package apiserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/freeport"
	"github.com/warmpath/warmpath/internal/pause"
)

// ErrMissing is returned where etcd and kube-apiserver are not built; .ci/kubernetes builds them.
var ErrMissing = errors.New("etcd and kube-apiserver are not there; .ci/kubernetes builds them")

// version is the API server's; tools/kube-apiserver/go.mod has it too.
const version = "1.37.2"

// A Server is an API server with its etcd. Its fields do not change, its methods are for one goroutine.
type Server struct {
	URL   string // https://127.0.0.1:port, the same after a restart
	CA    []byte // PEM of the certificates that the server's is checked with
	Token string // of an administrator

	dir       string // of all its files
	programs  string // where etcd and kube-apiserver are
	etcdURL   string
	peerURL   string // where etcd's peers would reach it
	etcd, api *process
	client    *http.Client
}

// Start starts etcd and the API server, and returns when both serve.
func Start(ctx context.Context) (*Server, error) {
	programs, err := find()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "warmpath-apiserver-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, programs: programs, Token: rand.Text()}
	if err := errors.Join(s.prepare(), s.startEtcd(ctx)); err != nil {
		s.Close()
		return nil, err
	}
	if err := s.Start(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// find returns the directory of the programs.
func find() (string, error) {
	dir := os.Getenv("WARMPATH_KUBERNETES")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(cache, "warmpath", "kubernetes-"+version)
	}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return "", fmt.Errorf("%w (%w)", ErrMissing, err)
		}
	}
	return dir, nil
}

// prepare chooses the addresses and writes the key of the service accounts' tokens and the administrator's token.
func (s *Server) prepare() error {
	at := freeport.Find(3)
	s.URL, s.etcdURL = fmt.Sprint("https://127.0.0.1:", at[0]), fmt.Sprint("http://127.0.0.1:", at[1])
	s.peerURL = fmt.Sprint("http://127.0.0.1:", at[2])
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	return errors.Join(
		os.WriteFile(s.file("sa.key"), pem.EncodeToMemory(&block), 0o600),
		os.WriteFile(s.file("tokens.csv"), []byte(s.Token+",admin,admin,system:masters\n"), 0o600))
}

func (s *Server) file(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) startEtcd(ctx context.Context) error {
	var err error
	s.etcd, err = start(s.file("etcd.log"), filepath.Join(s.programs, "etcd"),
		"--data-dir", s.file("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls", s.etcdURL, "--advertise-client-urls", s.etcdURL, "--listen-peer-urls", s.peerURL,
		"--initial-advertise-peer-urls", s.peerURL, "--initial-cluster", "default="+s.peerURL)
	if err != nil {
		return err
	}
	return s.etcd.await(ctx, func() error { return get(ctx, http.DefaultClient, s.etcdURL+"/health") })
}

// Start starts the API server, again after a Stop, and returns when it serves.
func (s *Server) Start(ctx context.Context) error {
	_, port, err := net.SplitHostPort(s.URL[len("https://"):])
	if err != nil {
		return err
	}
	s.api, err = start(s.file("kube-apiserver.log"), filepath.Join(s.programs, "kube-apiserver"),
		"--etcd-servers", s.etcdURL, "--bind-address=127.0.0.1", "--secure-port", port,
		"--cert-dir", s.file("certs"), "--endpoint-reconciler-type=none",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file", s.file("sa.key"),
		"--service-account-signing-key-file", s.file("sa.key"), "--token-auth-file", s.file("tokens.csv"),
		"--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount",
		"--service-cluster-ip-range=10.0.0.0/24")
	if err != nil {
		return err
	}
	return s.api.await(ctx, func() error { return s.ready(ctx) })
}

// ready returns why the API server does not serve yet.
func (s *Server) ready(ctx context.Context) error {
	if s.client == nil { // the first start makes the certificate
		if err := s.trust(); err != nil {
			return err
		}
	}
	return get(ctx, s.client, s.URL+"/readyz")
}

// trust makes the client that checks the API server's certificate.
func (s *Server) trust() error {
	file := filepath.Join(s.file("certs"), "apiserver.crt")
	ca, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return fmt.Errorf("%s has no certificate", file)
	}
	s.CA = bytes.Clone(ca)
	s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	return nil
}

// Stop ends the API server at once, as the loss of its machine would. etcd and what it holds stay.
func (s *Server) Stop() {
	if s.api != nil {
		s.api.kill()
	}
	if s.client != nil {
		s.client.CloseIdleConnections()
	}
}

// Close ends both processes and removes their files.
func (s *Server) Close() {
	s.Stop()
	if s.etcd != nil {
		s.etcd.kill()
	}
	http.DefaultClient.CloseIdleConnections()
	_ = os.RemoveAll(s.dir)
}

// get returns nil where a server answers with 200.
func get(ctx context.Context, c *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := c.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, answer.Status)
	}
	return nil
}

// A process is a program under test.
type process struct {
	name  string
	log   string // the file that it writes to
	cmd   *exec.Cmd
	ended chan struct{}
}

// start starts a program that writes to a log.
func start(log, path string, args ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{name: filepath.Base(path), log: log, cmd: exec.Command(path, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	endWithParent(p.cmd)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// startWithin is how long a program may take until it serves; a busy machine needs most of it.
const startWithin = 3 * time.Minute

// await returns when serves does without an error.
func (p *process) await(ctx context.Context, serves func() error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for range pause.Every(ctx, 50*time.Millisecond) {
		if err = serves(); err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended: %s", p.name, p.tail())
		default:
		}
	}
	return fmt.Errorf("%s does not serve: %w: %s", p.name, errors.Join(ctx.Err(), err), p.tail())
}

// tail returns the end of the log.
func (p *process) tail() string {
	data, _ := os.ReadFile(p.log)
	return string(data[max(0, len(data)-2000):])
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// shared is the server of all tests of a package; the first that wants it starts it.
var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// Shared returns the server of all tests of a package, whose TestMain runs [Main]. Tests that stop its API server start
// it again, and run alone. The test is skipped where the programs are missing.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.once.Do(func() { shared.server, shared.err = Start(context.Background()) })
	switch {
	case errors.Is(shared.err, ErrMissing) && os.Getenv("WARMPATH_REQUIRE_ALL") == "":
		t.Skip(shared.err)
	case shared.err != nil:
		t.Fatal(shared.err)
	}
	return shared.server
}

// Main is a [testing.M] that closes the server of [Shared] after the tests.
type Main struct{ *testing.M }

// Run runs the tests.
func (m Main) Run() int {
	code := m.M.Run()
	if shared.server != nil {
		shared.server.Close()
	}
	return code
}
