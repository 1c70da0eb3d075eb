//go:build !race && !invariants

package ibverbx

// What public methods do on entry and exit in builds with the race detector; in others it is
// nothing.

func (*VirtualCQ) enter() {}
func (*VirtualCQ) exit()  {}
func (*VirtualQP) enter() {}
func (*VirtualQP) exit()  {}

type ownerGuard struct{}
