//go:build amd64 || arm64

package shm

// pause tells the processor that it runs a loop that waits: the other thread of its core gets more
// of the core.
func pause()
