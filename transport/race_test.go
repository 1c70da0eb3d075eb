//go:build race

package transport_test

// raceEnabled: the race detector watches. It reports transfers that overlap on purpose, but for
// words, and makes sync.Pool forget.
const raceEnabled = true
