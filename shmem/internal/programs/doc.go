// Package programs has small parallel programs whose result is known exactly: they show how package
// shmem is used, and prove it on whatever PEs they are run on, goroutines or processes. Each comes
// with its serial counterpart.
package programs
