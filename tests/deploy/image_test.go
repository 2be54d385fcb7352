package deploy

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/apiserver"
)

var program string // the program that build has built

// build builds the command as docs/kubernetes.md does.
func build(t *testing.T) string {
	t.Helper()
	if program != "" {
		return program
	}
	dir, err := os.MkdirTemp("", "warmpath-deploy-") // TestMain removes it
	require.NoError(t, err)
	line := strings.Replace(pageLine(t, "CGO_ENABLED=0 "), "-o bin/ ", "-o "+dir+"/ ", 1)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "GOWORK=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	program = filepath.Join(dir, "warmpath")
	return program
}

func TestMain(m *testing.M) {
	code := apiserver.Main{M: m}.Run()
	if program != "" {
		_ = os.RemoveAll(filepath.Dir(program))
	}
	os.Exit(code)
}

// The image has only the command, which runs in it and does not run as root.
func TestImage(t *testing.T) {
	if _, err := exec.LookPath("buildah"); err != nil || os.Getuid() != 0 {
		require.Empty(t, os.Getenv("WARMPATH_REQUIRE_ALL"), "buildah is not installed, or this is not root")
		t.Skip("buildah is not installed, or this is not root")
	}
	store, layout, image := t.TempDir(), t.TempDir(), t.TempDir()
	buildah := func(args ...string) {
		out, err := exec.CommandContext(t.Context(), "buildah", append([]string{
			"--storage-driver", "vfs", "--root", filepath.Join(store, "root"), "--runroot", filepath.Join(store, "run"),
		}, args...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	words := strings.Fields(pageLine(t, "docker build "))[1:] // build -t NAME -f Dockerfile bin
	require.Equal(t, "bin", words[len(words)-1])
	words[len(words)-1] = filepath.Dir(build(t))
	buildah(replaced(words, "Dockerfile", root+"/Dockerfile")...)
	buildah("push", words[2], "oci:"+layout)

	blob := func(digest string) string {
		return filepath.Join(layout, "blobs", strings.Replace(digest, ":", "/", 1))
	}
	type descriptor struct{ Digest string }
	var index struct{ Manifests []descriptor }
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	var config struct {
		Config struct {
			User       string
			Entrypoint []string
		}
	}
	require.NoError(t, json.Unmarshal(read(t, filepath.Join(layout, "index.json")), &index))
	require.Len(t, index.Manifests, 1)
	require.NoError(t, json.Unmarshal(read(t, blob(index.Manifests[0].Digest)), &manifest))
	require.NoError(t, json.Unmarshal(read(t, blob(manifest.Config.Digest)), &config))
	for _, l := range manifest.Layers {
		out, err := exec.CommandContext(t.Context(), "tar", "-xf", blob(l.Digest), "-C", image).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}

	require.Equal(t, []string{"/warmpath"}, config.Config.Entrypoint)
	files, err := os.ReadDir(image)
	require.NoError(t, err)
	require.Len(t, files, 1)
	info, err := buildinfo.ReadFile(filepath.Join(image, "warmpath"))
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(info.Deps, func(m *debug.Module) bool {
		return m.Path == "golang.org/x/crypto/x509roots/fallback"
	}), "the certificates of public authorities")

	user, group, found := strings.Cut(config.Config.User, ":")
	require.True(t, found)
	run := exec.CommandContext(t.Context(), config.Config.Entrypoint[0], "version")
	run.Dir, run.Env, run.SysProcAttr = "/", []string{}, &syscall.SysProcAttr{
		Chroot: image, Credential: &syscall.Credential{Uid: number(t, user), Gid: number(t, group)},
	}
	out, err := run.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.True(t, strings.HasPrefix(string(out), "warmpath "), "%s", out)
}

// number returns the number of a user or a group, which must not be root.
func number(t *testing.T, id string) uint32 {
	t.Helper()
	n, err := strconv.ParseUint(id, 10, 32)
	require.NoError(t, err)
	require.NotZero(t, n)
	return uint32(n)
}
