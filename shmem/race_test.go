//go:build race

package shmem_test

// raceEnabled: the race detector drops what pools hold now and then.
const raceEnabled = true
