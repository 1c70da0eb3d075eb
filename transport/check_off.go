//go:build !race && !invariants

package transport

// checking is on in builds with the race detector or the tag invariants; in others the checks cost
// nothing.
const checking = false
