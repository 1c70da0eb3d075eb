//go:build race

package bench

// raceDetector says that the race detector watches,
// under which pools forget and everything takes long.
const raceDetector = true
