// Package programs has small parallel programs whose result is known exactly. They show how package
// shmem is used, and test it with PEs that are goroutines or processes. Each comes with its serial
// counterpart.
package programs
