//go:build race

package tagged_test

const raceEnabled = true
