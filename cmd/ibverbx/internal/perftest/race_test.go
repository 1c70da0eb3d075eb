//go:build race

package perftest

const raceDetector = true
