// Package file resolves dial targets that name a fleet file:
//
//	warmpath-file:///etc/warmpath/fleet.yaml
//	warmpath-file:fleet.yaml                      relative to the working directory
//
// Importing it registers the scheme. The fleet is sent in each Build and after every change of the file. A file that
// breaks leaves the last good fleet in force, is logged once per change. Authorities are those of package
// resolver. Close returns when the goroutine that follows the file has ended.
package file

import (
	"fmt"
	"net/url"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/fleetfile"
	"github.com/warmpath/warmpath/internal/strict"
	"github.com/warmpath/warmpath/internal/target"
)

func init() {
	target.Register(target.FileScheme, func(u url.URL) error {
		_, err := check(u)
		return err
	}, start)
}

// start reads the file and follows it. A file that is missing or broken now is an error.
func start(c *target.Channel) (stop func(), err error) {
	path, err := check(c.Target)
	if err != nil {
		return nil, err
	}
	return fleetfile.Watch(path, (&follower{Channel: c, path: path}).update), nil
}

// check returns the path of a target, or what is wrong with it or with its file.
func check(u url.URL) (string, error) {
	path, err := parsePath(u)
	if err != nil {
		return "", err
	}
	_, err = fleetfile.Load(path)
	return path, strict.In(target.FileScheme+": ", err)
}

// parsePath reads the target of a fleet file.
func parsePath(u url.URL) (string, error) {
	if u.Host != "" || u.User != nil {
		return "", fmt.Errorf("%q: a file has no host; want %s:///path with three slashes, or %s:path for a relative path",
			u.String(), target.FileScheme, target.FileScheme)
	}
	path, err := target.OpaqueOrPath(u)
	if err != nil {
		return "", err
	}
	if path == "" || path == "/" {
		return "", fmt.Errorf("%q names no file; want %s:///path", u.String(), target.FileScheme)
	}
	return path, nil
}

type follower struct {
	*target.Channel
	path string

	// Of update alone, which is never called twice at a time.
	err      error // the file is broken
	replicas int   // in the last good fleet
}

// update receives the content, the first time from within start.
func (r *follower) update(data []byte, err error) {
	var replicas []policy.Attributes
	if err == nil {
		replicas, err = fleetfile.ParseFile(r.path, data)
	}
	was := r.err
	r.err = err
	if err != nil {
		r.Log.Warn("warmpath: the fleet file is broken, the last good fleet stays",
			"path", r.path, "replicas", r.replicas, "error", err)
		return
	}
	if was != nil {
		r.Log.Info("warmpath: the fleet file is good again", "path", r.path, "replicas", len(replicas))
	}
	r.replicas = len(replicas)
	r.Send(replicas)
}
