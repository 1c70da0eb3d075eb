//go:build !race

package transport

// checking is on in builds with the race detector; in others the checks cost nothing.
const checking = false
