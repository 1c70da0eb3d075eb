//go:build !race

package perftest

const raceDetector = false
