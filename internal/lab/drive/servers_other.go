//go:build !unix

package drive

import "errors"

// Stop fails: this system has no SIGSTOP.
func (p *ServerProcess) Stop() error { return errors.ErrUnsupported }

// Continue fails likewise.
func (p *ServerProcess) Continue() error { return errors.ErrUnsupported }
