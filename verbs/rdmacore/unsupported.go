//go:build !(linux && (amd64 || arm64))

package rdmacore

import (
	"runtime"

	"ibverbx/verbs"
)

// Provider has no NICs on this platform.
type Provider struct{ verbs.Provider }

// Open returns an error: libibverbs needs Linux on amd64 or arm64.
func Open(Config) (*Provider, error) {
	return nil, &verbs.OpError{Op: "open libibverbs", Err: ErrNoLibrary,
		Detail: "RDMA devices need Linux on amd64 or arm64, this is " + runtime.GOOS + "/" + runtime.GOARCH}
}

// Unopened is never reached: there is no provider.
func (*Provider) Unopened() error { return nil }

// Arena is memory outside the Go heap.
type Arena struct{}

// NewArena is never reached: there is no provider.
func (*Provider) NewArena(int) (*Arena, error) { return nil, ErrNoLibrary }

// Bytes returns the memory.
func (*Arena) Bytes() []byte { return nil }

// HugePages reports whether the arena is on reserved huge pages.
func (*Arena) HugePages() bool { return false }

// Close unmaps the memory.
func (*Arena) Close() error { return nil }
