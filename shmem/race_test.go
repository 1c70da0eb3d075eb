//go:build race

package shmem_test

// raceEnabled: under the race detector a sync.Pool drops some of its values, so that calls
// allocate.
const raceEnabled = true
