//go:build !race

package guard

// Race reports whether the race detector is on. Then a sync.Pool drops some of the objects that it
// is given, so calls allocate, and everything takes longer.
const Race = false
