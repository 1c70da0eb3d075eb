package rdmacore

import (
	"ibverbx/verbs"
)

// Config configures [Open]. The zero value takes every device of the host.
type Config struct {
	// Library is the path of libibverbs; empty means libibverbs.so.1, which the dynamic loader
	// looks up as usual.
	Library string
	// Devices selects devices, and their order, as a filter of [verbs.ParseDeviceFilter]:
	// "mlx5_0:1,mlx5_1:1", "mlx5_*", "^mlx5_2". Empty means all, in the library's order.
	Devices string
}

// Why there are no real NICs to work with. Both match [verbs.ErrNotSupported].
var (
	// ErrNoLibrary: libibverbs is not installed, or the library that was loaded is not libibverbs.
	ErrNoLibrary error = &unavailable{"no libibverbs"}
	// ErrNoDevice: the kernel has no RDMA device, none that Config.Devices selects, or none that
	// libibverbs knows.
	ErrNoDevice error = &unavailable{"no RDMA device"}
)

type unavailable struct{ text string }

func (u *unavailable) Error() string        { return u.text }
func (u *unavailable) Is(target error) bool { return target == verbs.ErrNotSupported }
