//go:build !race && !invariants

package guard

// Checked reports whether this build detects concurrent use and checks invariants after each call.
const Checked = false

// flag has the methods that Owner needs to compile; no build that has it calls them.
type flag struct{}

func (flag) Swap(bool) bool { return false }
func (flag) Store(bool)     {}
func (flag) Load() bool     { return false }
