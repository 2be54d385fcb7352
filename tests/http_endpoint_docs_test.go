package tests

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every reason, header and state of the HTTP endpoint is on its page, and every reason in the table exists.
func TestHTTPEndpointPage(t *testing.T) {
	page := section(t, "docs/http-endpoint.md", "## HTTP: POST /internal/route")
	handler := readDoc(t, "internal/httpendpoint/handler.go")
	source := handler + readDoc(t, "internal/endpoint/refusal.go")
	for _, m := range regexp.MustCompile(`http\.Status\w+, "(\w+)"`).FindAllStringSubmatch(source, -1) {
		require.Contains(t, page, "| `"+m[1]+"` |")
	}
	for _, m := range regexp.MustCompile("(?m)^\\| \\d{3} \\| `(\\w+)`").FindAllStringSubmatch(page, -1) {
		require.Contains(t, source, `, "`+m[1]+`"}`)
	}
	for _, m := range regexp.MustCompile(`"(X-[\w-]+)"`).FindAllStringSubmatch(source, -1) {
		require.Contains(t, page, "`"+m[1]+"`")
	}
	answer := regexp.MustCompile(`(?s)type Destination struct \{.*?\n\}`).FindString(handler)
	fields := regexp.MustCompile(`json:"(\w+)`).FindAllStringSubmatch(answer, -1)
	require.NotEmpty(t, fields)
	for _, m := range fields {
		require.Contains(t, page, "`"+m[1]+"`")
	}
	for _, m := range regexp.MustCompile(`BodyState = "(\w+)"`).FindAllStringSubmatch(readDoc(t, "internal/endpoint/question.go"), -1) {
		require.Contains(t, page, "`"+m[1]+"`")
	}
}

// Every variable and reason of the HAProxy example is on its page, and the page's command starts HAProxy.
func TestHAProxyPage(t *testing.T) {
	page := section(t, "docs/http-endpoint.md", "## HAProxy")
	source := readDoc(t, "examples/haproxy/haproxy.cfg") + readDoc(t, "examples/haproxy/warmpath.lua")
	for _, m := range regexp.MustCompile(`(?:defined\(|"\$\{|getenv\(")(WARMPATH_\w+)`).FindAllStringSubmatch(source, -1) {
		if !strings.HasPrefix(m[1], "WARMPATH_REPLICA_") {
			require.Contains(t, page, "`"+m[1]+"`")
		}
	}
	reasons := regexp.MustCompile(`(?:X-Warmpath-Reason |return nil, "|return ")(\w+_\w+)`).FindAllStringSubmatch(source, -1)
	require.Greater(t, len(reasons), 4)
	for _, m := range reasons {
		require.Contains(t, page, "| `"+m[1]+"` |")
	}
	_, err := exec.LookPath("haproxy")
	needs(t, "haproxy", err)
	command := regexp.MustCompile(`(?m)^    (WARMPATH_LISTEN=.* haproxy .*)$`).FindStringSubmatch(page)
	require.NotNil(t, command)
	cmd := exec.Command("sh", "-c", command[1]+" -c")
	cmd.Dir = "../examples/haproxy"
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
