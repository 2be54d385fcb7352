package tests

import (
	"context"
	"log/slog"
	"os/exec"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/endpoint"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/server"
)

// A browser is one tab of headless Chromium.
type browser struct {
	t   testing.TB
	ctx context.Context
}

// openBrowser starts a browser that ends with the test. Every page that it opens counts violations of its content
// security policy in window.violations.
func openBrowser(t testing.TB) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	needs(t, "chromium", err)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	allocator, end := chromedp.NewExecAllocator(ctx,
		chromedp.ExecPath(path), chromedp.WSURLReadTimeout(time.Minute), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.UserDataDir(t.TempDir()))
	t.Cleanup(end)
	tab, shut := chromedp.NewContext(allocator)
	t.Cleanup(shut)
	return &browser{t, tab}
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, steps...))
}

// show opens a page with this width and color scheme, and waits for its first update.
func (b *browser) show(url string, width int64, scheme string) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(width, 900))
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	require.NoError(b.t, err)
	b.do(chromedp.Navigate(url))
	b.until("the page is live", `document.getElementById("link").value === "live"`)
	eval[bool](b, `window.violations = 0; addEventListener("securitypolicyviolation", () => violations++); true`)
}

// token makes the browser send a token as the password.
func (b *browser) token(authorization string) {
	b.t.Helper()
	b.do(chromedp.Navigate("about:blank"))
	_, err := chromedp.Call(b.ctx, network.Enable, network.EnableParams{})
	require.NoError(b.t, err)
	_, err = chromedp.Call(b.ctx, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{
		Headers: network.Headers{"Authorization": authorization}})
	require.NoError(b.t, err)
}

// eval evaluates an expression in the page.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	require.NoError(b.t, err, expression)
	return v
}

func (b *browser) until(what, expression string) {
	b.t.Helper()
	eventually(b.t, what, func() bool { return eval[bool](b, expression) })
}

// updates waits until the page has been updated this number of times from now on.
func (b *browser) updates(n int) {
	b.t.Helper()
	eval[bool](b, `window.updates = 0; source.addEventListener("message", () => updates++); true`)
	eventually(b.t, "updates", func() bool { return eval[int](b, `updates`) >= n })
}

// shown is a server with its page.
type shown struct {
	endpoint.Host
	server *server.Server
	url    string
}

func servePage(t testing.TB, config string) *shown {
	t.Helper()
	s, err := server.New(parsePage(t, config), server.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	lis := listenLoopback(t)
	served := make(chan error, 1)
	go func() { served <- s.ServeRoutes(lis) }()
	t.Cleanup(func() {
		s.Close()
		require.NoError(t, <-served)
	})
	return &shown{endpoint.Of(s), s, "http://" + lis.Addr().String() + "/"}
}

func parsePage(t testing.TB, config string) *server.Config {
	t.Helper()
	c, err := server.ParseConfig([]byte("http: {listen: '127.0.0.1:0'}\nload_interval: 20ms\n" + config))
	require.NoError(t, err)
	return c
}

// reserve picks this number of times, and keeps the load.
func (s *shown) reserve(t testing.TB, n int, on string) {
	t.Helper()
	for range n {
		_, err := s.ChooseReplica(deadline(t), &warmpathv1.ChooseReplicaRequest{
			Deployment: "chat", Pinned: on, Mode: warmpathv1.PickMode_PICK_MODE_RESERVE,
			Key: &warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_Text{Text: "hello"}},
		})
		require.NoError(t, err)
	}
}

func (s *shown) status(t testing.TB) *warmpathv1.DeploymentStatus {
	t.Helper()
	a, err := s.GetStatus(deadline(t), &warmpathv1.GetStatusRequest{Deployment: "chat"})
	require.NoError(t, err)
	return a.GetDeployments()[0]
}
