//go:build linux && (amd64 || arm64) && purego

package rdmacore

import "github.com/ebitengine/purego"

// call calls C without assembly of this package.
func (c *crossing) call() uintptr {
	c.result, _, _ = purego.SyscallN(c.fn, c.args[:]...)
	return c.result
}
