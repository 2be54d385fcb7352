package tests

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// pageFleet is a deployment of n replicas.
func pageFleet(n int) string {
	var b strings.Builder
	b.WriteString("deployments:\n  chat:\n    policy: {kv_aware: {}}\n    shadow_policy: {round_robin: {}}\n    replicas:\n")
	for i := range n {
		fmt.Fprintf(&b, "    - {id: r%d, address: '10.0.0.%d:8000', max_ongoing_requests: 64}\n", i, i)
	}
	return b.String()
}

const (
	fleetRows = `[...document.querySelectorAll(".fleet tbody tr")].map((row) => [row.cells[0].firstChild.data, row.cells[0].querySelector("small").textContent,
		row.cells[1].textContent, row.cells[2].textContent, row.cells[3].textContent].map((s) => s.trim()).join("|"))`
	reasonRows = `[...document.querySelectorAll(".reasons tbody tr")].map((row) => row.cells[0].textContent + "|" + row.cells[3].textContent)`
)

// rows are the fleet and the decisions of the status.
func (s *shown) rows(t testing.TB) (fleet, reasons []string) {
	d := s.status(t)
	for _, r := range d.GetReplicas() {
		fleet = append(fleet, fmt.Sprintf("%s|%s|%s|%d of %d|%d", r.GetId(), r.GetAddress(), r.GetState(), r.GetOngoing(), r.GetMaxOngoingRequests(), r.GetQueuedTokens()))
	}
	for _, c := range d.GetDecisions() {
		reasons = append(reasons, fmt.Sprintf("%s|%d", c.GetReason(), c.GetCount()))
	}
	return fleet, reasons
}

// The page shows what the status reports for 200 replicas, follows it, and touches only the rows that differ.
func TestPageFollowsTheServer(t *testing.T) {
	b := openBrowser(t)
	s := servePage(t, pageFleet(200))
	s.reserve(t, 40, "")
	b.show(s.url, 1600, "light")
	same := func() bool {
		fleet, reasons := s.rows(t)
		return strings.Join(fleet, "\n") == strings.Join(eval[[]string](b, fleetRows), "\n") &&
			strings.Join(reasons, "\n") == strings.Join(eval[[]string](b, reasonRows), "\n")
	}
	eventually(t, "the page shows the status", same)
	require.Equal(t, "200 ready", eval[string](b, `document.querySelector(".states").textContent.trim()`))
	require.Less(t, eval[int](b, `document.querySelectorAll("*").length`), 200*30, "nodes")

	eval[bool](b, `window.touched = new Set(), window.moved = 0, window.tasks = [];
		new PerformanceObserver((list) => tasks.push(...list.getEntries().map((e) => e.duration))).observe({type: "longtask"});
		new MutationObserver((all) => { for (const m of all) {
			moved += m.addedNodes.length + m.removedNodes.length;
			touched.add((m.target.closest ? m.target : m.target.parentElement).closest("tr")?.cells[0].firstChild.data);
		}}).observe(document.querySelector(".fleet"), {subtree: true, childList: true, characterData: true, attributes: true}); true`)
	for n, on := range []string{"r7", "r7", "r190"} {
		s.reserve(t, 3+n, on)
		eventually(t, "the page follows", same)
	}
	b.updates(2)
	require.ElementsMatch(t, []string{"r7", "r190"}, eval[[]string](b, `[...touched]`), "rows that changed")
	require.Zero(t, eval[int](b, `moved`), "no node was replaced")
	t.Log("long tasks in ms:", eval[[]float64](b, `tasks`))
	require.Zero(t, eval[int](b, `violations`))

	require.NoError(t, s.server.Update(parsePage(t, pageFleet(3))))
	b.until("replicas go", `document.querySelectorAll(".fleet tbody tr").length === 3`)
	eventually(t, "the page shows the status", same)
	s.server.Close()
	b.until("the page shows that the server is gone", `document.getElementById("link").value === "disconnected"`)
}

// The page works by keyboard alone. Updates keep the focus and the text of inputs.
func TestPageByKeyboard(t *testing.T) {
	b := openBrowser(t)
	s := servePage(t, pageFleet(5)+"  code: {replicas: [{id: b, address: 'h:1'}]}\n")
	b.show(s.url, 1600, "light")
	focused := `((e) => e.name || e.id || e.textContent.trim())(document.activeElement)`
	var order []string
	for range 7 {
		b.do(chromedp.KeyEvent(kb.Tab))
		order = append(order, eval[string](b, focused))
		require.NotEqual(t, "none", eval[string](b, `getComputedStyle(document.activeElement).outlineStyle`), "the focus is visible")
		switch order[len(order)-1] {
		case "deployment":
			b.do(chromedp.KeyEvent("chat"))
		case "session":
			b.do(chromedp.KeyEvent("it's me"))
		case "prompt":
			b.do(chromedp.KeyEvent("hello"))
		}
	}
	require.Equal(t, []string{"To the fleet", "pause", "deployment", "session", "model", "prompt", "Explain"}, order)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until("the answer", `document.querySelectorAll("#answer tbody tr").length === 5`)
	require.Contains(t, eval[string](b, `document.getElementById("answer").textContent`), "kv_aware of chat decides: ")
	require.Equal(t, "Explain", eval[string](b, focused))
	b.updates(2)
	require.Equal(t, "Explain", eval[string](b, focused))
	require.Equal(t, "it's me", eval[string](b, `document.querySelector("[name=session]").value`))
	require.Equal(t, "hello", eval[string](b, `document.querySelector("[name=prompt]").value`))
	require.Equal(t, 5, eval[int](b, `document.querySelectorAll("#answer tbody tr").length`), "updates leave the answer")
	b.do(chromedp.KeyEvent(kb.Tab))
	require.Equal(t, "Candidates", eval[string](b, `document.activeElement.ariaLabel`), "the table scrolls by keyboard")

	eval[bool](b, `pause.focus(); true`)
	b.do(chromedp.KeyEvent(" "))
	require.Equal(t, "paused", eval[string](b, `link.value`))
	s.reserve(t, 3, "r2")
	b.do(chromedp.KeyEvent(" "))
	b.until("it goes on", `link.value === "live" && document.querySelector(".fleet").textContent.includes("3 of 64")`)
	require.Zero(t, eval[int](b, `violations`))
}

// Names from configs and requests are shown as text, never as markup. The content security policy would block
// injected code.
func TestPageEscapes(t *testing.T) {
	b := openBrowser(t)
	const id = `<img/src=x/onerror=window.owned=1>`
	s := servePage(t, `
deployments:
  '<script>window.owned=1</script>': {replicas: [{id: b, address: 'h:1'}]}
  chat: {policy: {kv_aware: {}}, replicas: [{id: '`+id+`', address: 'h:2'}]}
`)
	b.show(s.url, 1600, "light")
	s.reserve(t, 1, "")
	b.until("an update with the name", `document.querySelector(".fleet").textContent.includes("1")`)
	for _, field := range []string{"session", "model", "prompt"} {
		for _, text := range []string{`"><img src=x onerror=window.owned=1>`, `</textarea><script>window.owned=1</script>`, `{"model":"<img src=x onerror=window.owned=1>"}`} {
			eval[bool](b, fmt.Sprintf(`document.getElementById("answer").textContent = ""; form.reset(); form.elements[%q].value = %q; form.elements.deployment.value = "chat"; form.requestSubmit(); true`, field, text))
			b.until("an answer", `document.getElementById("answer").textContent.trim() !== ""`)
		}
	}
	b.updates(1)
	require.Equal(t, id, eval[string](b, `[...document.querySelectorAll(".fleet th[scope=row]")].at(-1).firstChild.data`))
	require.Zero(t, eval[int](b, `document.querySelectorAll("main img, main script, main svg[onload], main [onerror]").length`))
	require.Zero(t, eval[int](b, `violations`))
	require.True(t, eval[bool](b, `window.owned === undefined`))
	eval[bool](b, `live.insertAdjacentHTML("beforeend", "<img src=x onerror=window.owned=1>"); document.body.append(Object.assign(document.createElement("script"), {textContent: "window.owned=1"})); true`)
	b.until("the policy refuses inline scripts", `violations > 1`)
	require.True(t, eval[bool](b, `window.owned === undefined`))
}

// contrasts is the lowest contrast of text with its background, by the formula of WCAG 2.
const contrasts = `(() => {
	const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
	const rgb = (color) => { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); return canvas.getImageData(0, 0, 1, 1).data; };
	const luminance = (color) => [...rgb(color)].slice(0, 3).map((x) => x / 255).map((x) => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4)
		.reduce((sum, x, i) => sum + x * [.2126, .7152, .0722][i], 0);
	const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (c !== "rgba(0, 0, 0, 0)") return c; } };
	let least = 99;
	for (const e of document.querySelectorAll("body *")) {
		if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || e.closest(".skip")) continue;
		const style = getComputedStyle(e), a = luminance(e.closest("svg") ? style.fill : style.color), b = luminance(ground(e));
		least = Math.min(least, (Math.max(a, b) + .05) / (Math.min(a, b) + .05));
	}
	return least;
})()`

// The page fits a phone and a large screen, in light and dark, with readable text.
func TestPageFits(t *testing.T) {
	b := openBrowser(t)
	s := servePage(t, pageFleet(16))
	s.reserve(t, 100, "")
	var grounds []string
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{400, 1600} {
			b.show(s.url, width, scheme)
			eval[bool](b, `form.requestSubmit(); true`)
			b.until("the answer", `document.querySelectorAll("#answer tbody tr").length === 16`)
			require.LessOrEqual(t, eval[int64](b, `document.documentElement.scrollWidth`), width, "%s", scheme)
			require.Empty(t, eval[[]string](b, `[...document.querySelectorAll("body *:not(.skip)")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 80))`))
			require.GreaterOrEqual(t, eval[float64](b, contrasts), 4.5, "%s, %d", scheme, width)
		}
		grounds = append(grounds, eval[string](b, `getComputedStyle(document.body).backgroundColor`))
	}
	require.Equal(t, []string{"rgb(255, 255, 255)", "rgb(20, 23, 26)"}, grounds)
}

// A browser with a token sees what its principal may see, also in updates, until the principal is removed.
func TestPageForPrincipals(t *testing.T) {
	b := openBrowser(t)
	config := func(token string) string {
		return pageFleet(2) + "  code: {replicas: [{id: b, address: 'h:1'}]}\nprincipals: [{name: team, token_file: " +
			tokenFile(t, token) + ", deployments: [chat]}]\n"
	}
	s := servePage(t, config("team-0123456789abcdef"))
	b.token("Basic " + base64.StdEncoding.EncodeToString([]byte(":team-0123456789abcdef")))
	b.show(s.url, 1600, "light")
	b.updates(1)
	require.Equal(t, []string{"Where would it go?", "chat", "Servers"}, eval[[]string](b, `[...document.querySelectorAll("h2")].map((e) => e.textContent)`))
	eval[bool](b, `form.requestSubmit(); true`)
	b.until("the answer", `document.getElementById("answer").textContent.includes("The scores are for trusted principals.")`)
	require.NoError(t, s.server.Update(parsePage(t, config("other-0123456789abcdef"))))
	b.until("the stream ends", `link.value === "disconnected"`)
}
