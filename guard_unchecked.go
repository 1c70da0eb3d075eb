//go:build !race && !invariants

package ibverbx

// Public methods check on entry and exit only in builds with the race detector or the tag
// invariants.

func (*VirtualCQ) enter() {}
func (*VirtualCQ) exit()  {}
func (*VirtualQP) enter() {}
func (*VirtualQP) exit()  {}

type ownerGuard struct{}
