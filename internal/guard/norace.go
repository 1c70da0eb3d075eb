//go:build !race

package guard

// Race reports whether the race detector watches. Then a sync.Pool drops some of what it is given,
// so that calls allocate, and everything takes longer.
const Race = false
