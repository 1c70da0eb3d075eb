package rdmacore

import "ibverbx/verbs"

// Why there are no real NICs to work with. Both are [verbs.ErrNotSupported] to errors.Is.
var (
	// ErrNoLibrary: libibverbs is not installed, or what was loaded is something else.
	ErrNoLibrary error = &unavailable{"no libibverbs"}
	// ErrNoDevice: the kernel shows no RDMA device, or none that was asked for, or none that its
	// library knows.
	ErrNoDevice error = &unavailable{"no RDMA device"}
)

type unavailable struct{ text string }

func (u *unavailable) Error() string        { return u.text }
func (u *unavailable) Is(target error) bool { return target == verbs.ErrNotSupported }
